package stream

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"berth/internal/fault"
)

// hello is the first frame of a connection, from the source, of a fixed size:
//
//	0   16  uuid of the migration
//	16   4  attempt, big endian
//	20   1  channel, its place in channels
//	21   3  zero
//	24  32  proof
//
// The proof is HMAC-SHA256 under the ticket over 32 bytes that TLS derives for
// this one connection (RFC 8446 section 7.5, RFC 9266) and the first 24 bytes. So
// the ticket never crosses the wire, and whoever gets hold of a frame can use it
// nowhere.
//
// The destination answers welcome when its own target is connected, or closes.
type hello [helloSize]byte

const (
	helloSize  = 56
	helloNamed = 24 // what the proof covers
	welcome    = 1
	proofLabel = "EXPORTER-berth-stream-ticket"
)

func newHello(id ID, c Channel, key []byte, s tls.ConnectionState) (hello, error) {
	var h hello
	uuid, err := hex.DecodeString(strings.ReplaceAll(id.Migration, "-", ""))
	if err != nil || len(uuid) != 16 {
		return h, fault.New(fault.Invalid, "%q is no uuid", id.Migration)
	}
	copy(h[:], uuid)
	binary.BigEndian.PutUint32(h[16:], uint32(id.Attempt))
	for i, known := range channels {
		if known == c {
			h[20] = byte(i)
		}
	}
	proof, err := prove(key, h[:helloNamed], s)
	copy(h[helloNamed:], proof)
	return h, err
}

func prove(key, named []byte, s tls.ConnectionState) ([]byte, error) {
	if len(key) != ticketSize {
		return nil, fault.New(fault.Invalid, "there is no ticket")
	}
	unique, err := s.ExportKeyingMaterial(proofLabel, nil, sha256.Size)
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(unique)
	mac.Write(named)
	return mac.Sum(nil), nil
}

// readHello reads a frame and says which channel of this session it opens. The
// proof is compared in constant time, and before the names are looked at: who
// has no ticket learns nothing by how long the answer takes.
func readHello(r io.Reader, id ID, key []byte, s tls.ConnectionState) (Channel, error) {
	var h hello
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return "", fmt.Errorf("no whole first frame came: %w", err)
	}
	proof, err := prove(key, h[:helloNamed], s)
	if err != nil {
		return "", err
	}
	proven := hmac.Equal(proof, h[helloNamed:])
	uuid := hex.EncodeToString(h[:16])
	named := fmt.Sprintf("%s-%s-%s-%s-%s-%d", uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:], binary.BigEndian.Uint32(h[16:]))
	switch {
	case named != id.String():
		return "", fault.New(fault.Forbidden, "it is for stream %s", named)
	case !proven:
		return "", fault.New(fault.Forbidden, "its ticket is not this stream's")
	case int(h[20]) >= len(channels):
		return "", fault.New(fault.Forbidden, "channel %d is not known", h[20])
	}
	return channels[h[20]], nil
}
