package guest

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
)

// blockSize and blockMost are the guest's: it writes blocks of one page, the
// first blockMost of its disk in turn.
const (
	blockSize = 4096
	blockMost = 1024
)

// CheckDisk reads a raw disk as the guest must have left it by heartbeat b: each
// block that this boot has written holds what was written last. The guest may
// write on meanwhile. It returns how many blocks were looked at; the error lists
// the first wrong ones.
func CheckDisk(disk io.ReaderAt, size int64, b Beat) (int, error) {
	id, err := hex.DecodeString(b.Boot)
	if err != nil || len(id) != 8 {
		return 0, fmt.Errorf("boot id %q is not one", b.Boot)
	}
	blocks := min(uint64(size/blockSize), blockMost)
	if blocks == 0 {
		return 0, fmt.Errorf("a disk of %d bytes has no block", size)
	}
	seen, wrong := 0, ""
	have, want := make([]byte, blockSize), make([]byte, blockSize)
	for i := range blocks {
		if b.N < i || i == 0 && b.N < blocks {
			continue // not written yet
		}
		n := i + (b.N-i)/blocks*blocks
		if n == 0 {
			continue
		}
		seen++
		fill(want, id, n)
		// What is not as it was left may have been written anew, or is being written
		// while it is read: then a second look finds it whole.
		for look := 0; ; look++ {
			if _, err := disk.ReadAt(have, int64(i)*blockSize); err != nil {
				return seen, fmt.Errorf("read block %d: %w", i, err)
			}
			if bytes.Equal(have, want) {
				break
			}
			if look == 0 {
				fill(want, id, n+blocks)
			} else if look == 100 {
				wrong += fmt.Sprintf(" %d (of heartbeat %d)", i, n)
				break
			}
		}
		if len(wrong) > 200 {
			break
		}
	}
	if wrong != "" {
		return seen, fmt.Errorf("by heartbeat %d these blocks are not what was written:%s", b.N, wrong)
	}
	return seen, nil
}

// fill is what the guest's disk.fill makes of a block in heartbeat n.
func fill(block, id []byte, n uint64) {
	seed := binary.LittleEndian.Uint64(id)
	for i := 0; i < len(block); i += 8 {
		x := seed ^ n<<12 ^ uint64(i)
		x ^= x >> 30
		x *= 0xbf58476d1ce4e5b9
		x ^= x >> 27
		x *= 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(block[i:], x^x>>31)
	}
}

// WrittenDisk is a raw disk as a boot leaves it that has ended after so many heartbeats:
// the next boot says that it was written by this one.
func WrittenDisk(boot string, beats uint64, size int64) ([]byte, error) {
	id, err := hex.DecodeString(boot)
	if err != nil || len(id) != 8 {
		return nil, fmt.Errorf("boot id %q is not one", boot)
	}
	if size < (blockMost+1)*blockSize {
		return nil, fmt.Errorf("a disk of %d bytes has no room for a label", size)
	}
	disk := make([]byte, size)
	for n := max(beats, blockMost) - blockMost + 1; n <= beats; n++ {
		fill(disk[n%blockMost*blockSize:][:blockSize], id, n)
	}
	label := disk[blockMost*blockSize:]
	copy(label, "berthlbl")
	copy(label[8:], id)
	binary.LittleEndian.PutUint64(label[16:], beats)
	return disk, nil
}
