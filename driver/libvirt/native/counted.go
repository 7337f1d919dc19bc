//go:build native

package native

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// An answer with a list says twice how long it is: before the list, and behind it as
// the result of the call. libvirt's library makes an array of the one length and gives
// back the other, which its Go binding believes: where they differ it reads on behind
// the array, and the process is gone. So the two are compared before the library sees
// the answer.

// The head of a packet (virnetprotocol.x): its length, program, version, procedure, type,
// serial and status, of four bytes each.
const (
	packetMin = 28
	packetMax = 64 << 20 // libvirt's own bound is below (VIR_NET_MESSAGE_MAX)

	programRemote = 0x20008086
	typeReply     = 1
	statusOK      = 0
)

// counted are the procedures whose answers the binding reads so: those of
// virConnectListAllDomains and virConnectListAllNodeDevices (remote_protocol.x).
var counted = map[uint32]bool{273: true, 285: true}

// forward passes packets on until either side ends, or one says two lengths of one
// list. Others are not held up: they pass as they come.
func forward(to io.Writer, from io.Reader) error {
	var head [packetMin]byte
	word := func(b []byte, i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	for {
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return err
		}
		length := int64(word(head[:], 0))
		if length < packetMin || length > packetMax {
			return fmt.Errorf("libvirt sent a packet of %d bytes", length)
		}
		rest := io.LimitReader(from, length-packetMin)
		if word(head[:], 1) == programRemote && word(head[:], 4) == typeReply && word(head[:], 6) == statusOK && counted[word(head[:], 3)] {
			// The memory grows with what has come, not with what was promised.
			var whole bytes.Buffer
			if n, err := io.Copy(&whole, rest); err != nil || n < length-packetMin {
				return io.ErrUnexpectedEOF
			}
			b := whole.Bytes()
			if len(b) < 8 || len(b)%4 != 0 || word(b, 0) != word(b, len(b)/4-1) {
				return fmt.Errorf("libvirt's answer to procedure %d is a list of two lengths", word(head[:], 3))
			}
			rest = &whole
		}
		if _, err := to.Write(head[:]); err != nil {
			return err
		}
		if n, err := io.Copy(to, rest); err != nil || n < length-packetMin {
			return io.ErrUnexpectedEOF
		}
	}
}
