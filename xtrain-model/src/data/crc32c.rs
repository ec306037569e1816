//! CRC-32C (Castagnoli), the checksum of token files.

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// The checksum of what `crc` covers followed by `bytes`; 0 covers nothing.
pub(super) fn extend(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!crc, |crc, &byte| TABLE[((crc ^ u32::from(byte)) & 0xff) as usize] ^ (crc >> 8))
}

#[cfg(test)]
mod tests {
    use super::extend;

    #[test]
    fn the_checksum_has_the_known_answer_in_one_piece_and_in_two() {
        assert_eq!(extend(0, b"123456789"), 0xe306_9283);
        assert_eq!(extend(extend(0, b"1234"), b"56789"), 0xe306_9283);
        assert_eq!(extend(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(extend(0, b""), 0);
    }
}
