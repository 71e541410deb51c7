"""The v1 frame: flags ‖ length ‖ data ‖ padding ‖ signature (26/WAKU2-PAYLOAD).

offset 0   flags      bits 0-1 = n, the number of length bytes; bit 2 = signed; other bits are ignored
offset 1   length     n bytes, little-endian
           data       ``length`` bytes
           padding    up to the signature or the end
           signature  65 bytes, when signed, over everything before it

Source: go-waku waku/v2/payload/waku_payload.go (validateAndParse).
"""

from coincurve import PrivateKey, PublicKey

from waku_bridge.codec.errors import BadFrame
from waku_bridge.codec.keys import SIGNATURE_BYTES, RandomBytes, not_all_zero, recover, sign

LENGTH_BYTES_MASK = 0x03
SIGNED_FLAG = 0x04
BLOCK_BYTES = 256
MAX_DATA_BYTES = 2**24 - 1


def parse(frame: bytes) -> tuple[bytes, PublicKey | None]:
    """Return data and signer of a frame. The signer is None when the frame is not signed.

    Raises BadFrame when the lengths contradict each other and BadSignature when no key can be recovered.
    """
    if not frame:
        raise BadFrame
    if not frame[0] & SIGNED_FLAG:
        return _data(frame, len(frame)), None
    end = len(frame) - SIGNATURE_BYTES
    if end <= 1:
        raise BadFrame
    return _data(frame, end), recover(frame[end:], frame[:end])


def build(data: bytes, signer: PrivateKey | None, random_bytes: RandomBytes) -> bytes:
    """Return a frame of a multiple of 256 bytes, signed when there is a signer. It draws its padding (1 to 256 bytes)
    at once.

    Raises ValueError when the data is longer than three length bytes can say.
    """
    if len(data) > MAX_DATA_BYTES:
        raise ValueError("too much data for one frame")
    length_bytes = max(1, (len(data).bit_length() + 7) // 8)
    flags = length_bytes | (SIGNED_FLAG if signer else 0)
    head = bytes((flags,)) + len(data).to_bytes(length_bytes, "little")
    size = len(head) + len(data) + (SIGNATURE_BYTES if signer else 0)
    unsigned = head + data + not_all_zero(random_bytes, BLOCK_BYTES - size % BLOCK_BYTES)
    return unsigned + sign(unsigned, signer) if signer else unsigned


def _data(frame: bytes, end: int) -> bytes:
    length_bytes = frame[0] & LENGTH_BYTES_MASK
    begin = 1 + length_bytes
    length = int.from_bytes(frame[1:begin], "little")  # without length bytes there is no data, and the rest is padding
    if begin + length > end:
        raise BadFrame
    return frame[begin : begin + length]
