//go:build native

package native

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// packet is one of libvirt's with these words behind its head.
func packet(procedure, kind, status uint32, words ...uint32) []byte {
	var b []byte
	for _, w := range append([]uint32{uint32(packetMin + 4*len(words)), programRemote, 1, procedure, kind, 7, status}, words...) {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// TestForward_StopsAListOfTwoLengths: such an answer, and nothing behind it, reaches the
// library; what came before has.
func TestForward_StopsAListOfTwoLengths(t *testing.T) {
	fine := [][]byte{
		packet(285, typeReply, statusOK, 0, 0),                // no device
		packet(285, typeReply, statusOK, 1, 3, 'a'<<24, 0, 1), // a name and no parent's
		packet(273, typeReply, 1, 9, 9, 9),                    // a refusal, of another shape
		packet(273, 2, statusOK, 5, 6),                        // an event of that number
		packet(14, typeReply, statusOK, 2, 3),                 // no list
		packet(14, typeReply, statusOK),
	}
	for name, bad := range map[string][]byte{
		"more than there are":  packet(285, typeReply, statusOK, 1, 3, 'a'<<24, 0, 2),
		"fewer than there are": packet(285, typeReply, statusOK, 1, 3, 'a'<<24, 0, 0),
		"less than none":       packet(273, typeReply, statusOK, 0, 0xfffffffe),
		"one word":             packet(273, typeReply, statusOK, 0),
		"too short a packet":   {0, 0, 0, 27, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"too long a packet":    append([]byte{0xff, 0xff, 0xff, 0xff}, make([]byte, packetMin)...),
		"half a packet":        packet(273, typeReply, statusOK, 1, 2, 1)[:36],
	} {
		before := bytes.Join(fine, nil)
		var out bytes.Buffer
		err := forward(&out, bytes.NewReader(append(bytes.Clone(before), bad...)))
		if err == nil || !bytes.Equal(out.Bytes(), before) {
			t.Errorf("%s: %v, and %d of %d bytes passed", name, err, out.Len(), len(before))
		}
	}
}
