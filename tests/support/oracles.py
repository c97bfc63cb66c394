"""What results are compared with: slow, plain Python written from the definitions."""

MASK = 2**64 - 1


def mix(number):
    """Splitmix64 in Python's own integers, from the published code."""
    number = (number + 0x9E3779B97F4A7C15) & MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


def hash_text(text):
    data = text.encode()
    number = mix(len(data))
    for start in range(0, len(data), 8):
        number = mix(number ^ int.from_bytes(data[start : start + 8], "little"))
    return number
