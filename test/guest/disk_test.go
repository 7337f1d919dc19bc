package guest

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

func TestCheckDisk_SeesALostWriteAndNoneThatIsNewer(t *testing.T) {
	id, _ := hex.DecodeString(bootA)
	const blocks = 16
	written := func(last uint64) []byte {
		disk := make([]byte, blocks*blockSize)
		for n := uint64(1); n <= last; n++ {
			fill(disk[n%blocks*blockSize:][:blockSize], id, n)
		}
		return disk
	}
	for name, tc := range map[string]struct {
		disk  []byte
		n     uint64
		seen  int
		wrong string
	}{
		"young":       {disk: written(5), n: 5, seen: 5},
		"all":         {disk: written(40), n: 40, seen: blocks},
		"newer":       {disk: written(43), n: 40, seen: blocks},
		"rolled back": {disk: written(24), n: 40, seen: 11, wrong: "0 (of heartbeat 32)"},
		"last lost":   {disk: written(39), n: 40, seen: blocks, wrong: "8 (of heartbeat 40)"},
		"never":       {disk: make([]byte, blocks*blockSize), n: 3, seen: 3, wrong: "1 (of heartbeat 1)"},
	} {
		seen, err := CheckDisk(bytes.NewReader(tc.disk), int64(len(tc.disk)), Beat{Boot: bootA, N: tc.n})
		if seen != tc.seen || (err == nil) != (tc.wrong == "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
			t.Errorf("%s: %d blocks, %v; want %d, %q", name, seen, err, tc.seen, tc.wrong)
		}
	}
}
