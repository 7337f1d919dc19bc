package stream

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
)

func TestStream_CarriesEachChannelToItsTarget(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	memory, disks := p.memory(), p.listen(p.dst.Paths(testID).Disks)
	out, in := p.connected(memory)
	p.says(out, in, "memory")
	p.says(in, out, "return path")
	out = p.dial(p.src.Paths(testID).Disks)
	in = p.accept(disks)
	p.says(out, in, "disks")
	p.until(p.src, "counted", func(st Status) bool {
		return st.Open == 2 && st.Of(Memory).Sent == 6 && st.Of(Memory).Received == 11 && st.Of(Disks).Sent == 5
	})
	p.until(p.dst, "counted", func(st Status) bool {
		return st.Open == 2 && st.Of(Memory).Received == 6 && st.Of(Memory).Sent == 11 && st.Of(Disks).Received == 5
	})
}

func TestStream_FourConnectionsLoseNothing(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	memory := p.memory()
	const each = 4 << 20
	var wg sync.WaitGroup
	for i := range 4 {
		out, in := p.connected(memory)
		sent, got := sha256.New(), sha256.New()
		wg.Go(func() {
			// Pieces of all sizes, odd ones too.
			bytes := rand.NewChaCha8([32]byte{byte(i)})
			r := rand.New(bytes)
			piece := make([]byte, 1<<20)
			for left := each; left > 0; {
				n := min(left, 1+r.IntN(len(piece)))
				_, _ = bytes.Read(piece[:n]) // never fails
				sent.Write(piece[:n])
				if _, err := out.Write(piece[:n]); err != nil {
					t.Error(err)
					return
				}
				left -= n
			}
			if err := out.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if n, err := io.Copy(got, in); n != each || err != nil {
				t.Errorf("%d bytes came, %v", n, err)
			}
			// The other direction is still open: this is a half close.
			if _, err := in.Write([]byte{1}); err != nil {
				t.Error(err)
			}
			in.Close()
		})
		defer func() {
			var end bytes.Buffer
			if _, err := io.Copy(&end, out); err != nil || end.Len() != 1 {
				t.Errorf("after the half close %d bytes came back, %v; want 1", end.Len(), err)
			}
			if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
				t.Errorf("connection %d: what came is not what was sent", i)
			}
		}()
	}
	wg.Wait()
	p.until(p.dst, "over", func(st Status) bool { return st.Open == 0 && st.Of(Memory).Received == 4*each })
}

func TestStream_WhoGoesWithoutReadingAllIsACut(t *testing.T) {
	p := newPair(t, inside(t))
	p.open()
	out, in := p.connected(p.memory())
	p.says(out, in, "x")
	if _, err := in.Write([]byte("what nobody reads")); err != nil {
		t.Fatal(err)
	}
	p.until(p.src, "there", func(st Status) bool { return st.Of(Memory).Received > 0 })
	out.Close()
	p.ends(in)
	p.until(p.src, "closed", func(st Status) bool { return st.Open == 0 })
	p.until(p.dst, "closed", func(st Status) bool { return st.Open == 0 })
}
