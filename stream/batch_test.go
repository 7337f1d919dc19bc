package stream

import (
	"bytes"
	"errors"
	"net"
	"testing"
)

func TestBatch_ReadyIsAWholeRecordOnly(t *testing.T) {
	record := append([]byte{23, 3, 3, 1, 4}, make([]byte, 260)...)
	for _, tt := range []struct {
		at   []byte
		want bool
	}{
		{nil, false}, {record[:4], false}, {record[:5], false}, {record[:264], false}, {record, true}, {append(bytes.Clone(record), 23), true},
	} {
		b := &batch{in: append([]byte("taken"), tt.at...), from: 5, to: 5 + len(tt.at)}
		if got := b.ready(); got != tt.want {
			t.Errorf("of %d bytes of a record of %d: %v, want %v", len(tt.at), len(record), got, tt.want)
		}
	}
}

func TestBatch_SendsWhatItHeldBackInOrder(t *testing.T) {
	a, c := net.Pipe()
	defer a.Close()
	b := newBatch(c)
	got := make(chan []byte)
	go func() {
		var all []byte
		buf := make([]byte, 1<<20)
		for {
			n, err := a.Read(buf)
			all = append(all, buf[:n]...)
			if err != nil {
				got <- all
				return
			}
		}
	}()
	var want []byte
	write := func(n int, with byte) error {
		piece := bytes.Repeat([]byte{with}, n)
		want = append(want, piece...)
		_, err := b.Write(piece)
		return err
	}
	// Less than it holds, more than it holds, and more than it ever could.
	err := errors.Join(write(3, 1), b.corked(func() error {
		return errors.Join(write(transfer, 2), write(transfer/8, 3), write(2*transfer, 4), write(7, 5))
	}), write(9, 6), c.Close())
	if err != nil {
		t.Fatal(err)
	}
	if all := <-got; !bytes.Equal(all, want) {
		t.Errorf("%d bytes came, %d were written, or their order changed", len(all), len(want))
	}
}
