"""Signatures: right, wrong, missing, of another key, of another algorithm; and where keys come from."""

import hashlib
import hmac
import sys

import pytest

from foregrad.cache.format.container import pack, read_header, unpack
from foregrad.cache.format.keys import (
    PublicKey,
    SecretKey,
    SharedKey,
    Trust,
    key_from_environment,
    key_from_file,
    parse_key,
)
from foregrad.core.errors import CorruptArtifact, UntrustedArtifact
from tests.keep import plain_reader
from tests.keep.entries import ABOUT, BLOBS, contents, forge, header_of

SECRET = bytes(range(32))
SHARED = SharedKey(SECRET)
OTHER = SharedKey(SECRET[::-1])


@pytest.fixture
def ed25519():
    pytest.importorskip("cryptography")
    return SecretKey(SECRET)


@pytest.fixture(params=["hmac-sha256", "ed25519"])
def signer(request):
    return SHARED if request.param == "hmac-sha256" else request.getfixturevalue("ed25519")


def test_a_signed_entry_is_accepted_by_those_who_have_its_key(signer):
    data = pack(ABOUT, BLOBS, signer=signer)
    assert contents(unpack(data, trust=Trust((OTHER, signer)))) == contents(unpack(data))
    assert read_header(data).signature.algorithm == signer.algorithm


def test_signatures_are_reproducible(signer):
    assert pack(ABOUT, BLOBS, signer=signer) == pack(ABOUT, BLOBS, signer=signer)


def test_hmac_is_that_of_the_specification():
    algorithm, key_id, message, value = plain_reader.signature(pack(ABOUT, BLOBS, signer=SHARED))
    assert algorithm == "hmac-sha256"
    assert key_id == hmac.new(SECRET, b"foregrad key id", hashlib.sha256).digest()
    assert value == hmac.new(SECRET, message, hashlib.sha256).digest()


def test_ed25519_is_that_of_the_specification(ed25519):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    algorithm, key_id, message, value = plain_reader.signature(pack(ABOUT, BLOBS, signer=ed25519))
    public = Ed25519PrivateKey.from_private_bytes(SECRET).public_key()
    assert algorithm == "ed25519"
    assert key_id == hashlib.sha256(public.public_bytes_raw()).digest()
    public.verify(value, message)


def test_the_public_half_accepts_and_cannot_sign(ed25519):
    data = pack(ABOUT, BLOBS, signer=ed25519)
    assert unpack(data, trust=Trust((ed25519.public,)))
    assert not hasattr(ed25519.public, "sign")


def test_an_unsigned_entry_is_refused():
    with pytest.raises(UntrustedArtifact, match="the entry is not signed; keys accepted here: hmac-sha256 key"):
        unpack(pack(ABOUT, BLOBS), trust=Trust((SHARED,)))


def test_without_a_key_nothing_is_trusted():
    with pytest.raises(UntrustedArtifact, match="keys accepted here: none"):
        unpack(pack(ABOUT, BLOBS, signer=SHARED), trust=Trust(()))


def test_an_entry_of_another_key_is_refused():
    with pytest.raises(
        UntrustedArtifact, match=f"is signed by hmac-sha256 key {OTHER.key_id.hex()[:16]}; keys accepted"
    ):
        unpack(pack(ABOUT, BLOBS, signer=OTHER), trust=Trust((SHARED,)))


def test_an_entry_of_another_algorithm_is_refused(ed25519):
    for signer, key in [(ed25519, SHARED), (SHARED, ed25519.public), (SHARED, ed25519)]:
        with pytest.raises(UntrustedArtifact, match=f"is signed by {signer.algorithm} key"):
            unpack(pack(ABOUT, BLOBS, signer=signer), trust=Trust((key,)))


def test_a_public_key_is_no_shared_secret(ed25519):
    """Who knows the public key only cannot pass off an HMAC under it as a signature."""
    forged = pack(ABOUT, BLOBS, signer=SharedKey(ed25519.public.public))
    with pytest.raises(UntrustedArtifact):
        unpack(forged, trust=Trust((ed25519.public,)))


def test_a_signature_fits_its_own_entry_only(signer):
    """The block of one entry under the header of another: its key is known, its signature wrong."""
    data, other = pack(ABOUT, BLOBS, signer=signer), pack(ABOUT | {"name": "other"}, BLOBS, signer=signer)
    *_, value = plain_reader.signature(data)
    *_, other_value = plain_reader.signature(other)
    with pytest.raises(UntrustedArtifact, match="that key did not sign these bytes"):
        unpack(other.replace(other_value, value), trust=Trust((signer,)))


def test_a_signature_of_another_length_is_wrong(signer):
    data = pack({}, {}, signer=signer)
    length = int.from_bytes(data[12:16], "little")
    shorter = data[:12] + (length - 1).to_bytes(4, "little") + data[16:]
    *_, value = plain_reader.signature(data)
    end = data.index(value) + len(value)
    shorter = shorter[: end - 1] + b"\0" + shorter[end:]
    assert unpack(shorter).about == {}
    with pytest.raises(UntrustedArtifact, match="did not sign"):
        unpack(shorter, trust=Trust((signer,)))


def test_the_signature_is_checked_before_the_header_is_parsed():
    with pytest.raises(UntrustedArtifact, match="is not signed"):
        unpack(forge("no JSON"), trust=Trust((SHARED,)))


@pytest.mark.parametrize("algorithm", [b"", b"\0abc", b"a\0b", b"UPPER", b"a b", b"\xff", b"new\n"])
def test_the_name_of_an_algorithm_is_a_name(algorithm):
    data = pack({}, {}, signer=SHARED)
    with pytest.raises(CorruptArtifact, match="where its signature belongs"):
        unpack(data.replace(b"hmac-sha256".ljust(16, b"\0"), algorithm.ljust(16, b"\0")))


def test_an_algorithm_that_is_not_known_is_not_trusted():
    data = pack({}, {}, signer=SHARED).replace(b"hmac-sha256", b"hmac-sha999")
    assert unpack(data).about == {}
    with pytest.raises(UntrustedArtifact, match="is signed by hmac-sha999 key"):
        unpack(data, trust=Trust((SHARED,)))


def test_a_signature_block_without_a_signature_is_damage():
    data = bytearray(forge(header_of([])))
    for length in (1, 47, 48):
        data[12:16] = length.to_bytes(4, "little")
        with pytest.raises(CorruptArtifact):
            unpack(bytes(data))


def test_keys_from_a_line_of_text(ed25519):
    digits = SECRET.hex()
    assert parse_key(f"hmac-sha256:{digits}\n", "here") == parse_key(digits, "here") == SHARED
    assert parse_key(f"ed25519-secret:{digits}", "here") == ed25519
    public = ed25519.public.public
    assert parse_key(f"ed25519-public:{public.hex()}", "here") == PublicKey(public) == ed25519.public


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rot13:00", r"a\.key holds a key of an unknown kind; known are hmac-sha256, ed25519-secret, ed25519-public"),
        ("hello", r"a\.key holds a key that is not in hexadecimal digits"),
        ("", "has 32 bytes or more, this one 0"),
        ("hmac-sha256:00ff", "has 32 bytes or more, this one 2"),
        ("ed25519-secret:00ff", "has 32 bytes, this one 2"),
        ("ed25519-public:00ff", "has 32 bytes, this one 2"),
    ],
)
def test_what_is_no_key_is_refused(text, message):
    if "ed25519" in text:
        pytest.importorskip("cryptography")
    with pytest.raises(ValueError, match=message):
        parse_key(text, "a.key")


def test_the_key_in_the_environment(monkeypatch):
    monkeypatch.delenv("FOREGRAD_CACHE_KEY", raising=False)
    assert key_from_environment() is None
    monkeypatch.setenv("FOREGRAD_CACHE_KEY", SECRET.hex())
    assert key_from_environment() == SHARED
    monkeypatch.setenv("FOREGRAD_CACHE_KEY", "secret")
    with pytest.raises(ValueError, match="FOREGRAD_CACHE_KEY holds a key that"):
        key_from_environment()


def key_file(folder, text, mode):
    path = folder / "a.key"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_secret_that_others_can_read_is_refused(tmp_path):
    assert key_from_file(key_file(tmp_path, SECRET.hex() + "\n", 0o600)) == SHARED
    for mode in (0o640, 0o604, 0o620, 0o644, 0o666):
        with pytest.raises(ValueError, match=rf"is open to others \(mode {mode:o}\): chmod 600"):
            key_from_file(key_file(tmp_path, SECRET.hex(), mode))


def test_a_public_key_may_be_read_by_all_and_written_by_its_owner(tmp_path, ed25519):
    text = f"ed25519-public:{ed25519.public.public.hex()}"
    assert key_from_file(key_file(tmp_path, text, 0o644)) == ed25519.public
    with pytest.raises(ValueError, match="is open to others"):
        key_from_file(key_file(tmp_path, text, 0o666))


def test_errors_and_reprs_tell_no_secret(tmp_path):
    for key in (SHARED, Trust((SHARED,))):
        assert SECRET.hex() not in repr(key)
        assert repr(SECRET) not in repr(key)
    with pytest.raises(ValueError) as caught:
        key_from_file(key_file(tmp_path, SECRET.hex() + "x", 0o600))
    assert SECRET.hex()[:8] not in str(caught.value)


def test_without_the_package_ed25519_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    for kind in (SecretKey, PublicKey):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'foregrad\[trust\]'"):
            kind(SECRET)
