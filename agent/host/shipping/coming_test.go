package shipping

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"berth/agent/host/disks/diskstest"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/transfer"
)

// pump ships as whoever conducts does: from where the destination is, one piece after
// another. before is asked before each verb, and ends it with its error.
func pump(a, b *port, files []migration.ShipFile, before func(verb string) error) error {
	ctx := a.t.Context()
	to := wire{b, before}
	far, err := to.ShippedSoFar(ctx, ref)
	if err != nil {
		return err
	}
	var want migration.Shipped
	for i, f := range files {
		sum, err := migration.ParseShipSum(far.Files[i].Sum)
		if err != nil {
			return err
		}
		order := transfer.Order{Bytes: far.Files[i].Bytes, Sum: sum}
		for {
			p, err := a.ReadDisk(ctx, ref, migration.DiskRange{Path: f.Path, Offset: order.Bytes, Length: migration.ShipRun, SumOnly: f.Compare})
			if err != nil {
				return err
			}
			if p.Length == 0 {
				want.Files = append(want.Files, migration.ShippedFile{Path: f.Path, Bytes: order.Bytes, Sum: order.Sum.String(), Version: p.Version})
				break
			}
			if err := to.WriteDisk(ctx, ref, p); err != nil {
				return err
			}
			if err := order.Take(p); err != nil {
				return err
			}
		}
	}
	return to.SealDisks(ctx, ref, want)
}

func anyVerb(string) error { return nil }

func codes(err error) (out []string) {
	for _, r := range fault.ReasonsOf(err) {
		out = append(out, r.Code)
	}
	return out
}

// lastPiece is the one with data.
func (p *port) lastPiece() migration.DiskPiece {
	p.t.Helper()
	d, err := p.ReadDisk(p.t.Context(), ref, migration.DiskRange{Path: disk, Offset: 64 << 20, Length: migration.ShipRun})
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

// TestWrite_RefusesWhatIsBroken holds the destination to its word: of a piece that is
// refused nothing is kept.
func TestWrite_RefusesWhatIsBroken(t *testing.T) {
	a, b, w := rig(t)
	r, good := b.prepare(ref), a.lastPiece()
	for _, tt := range []struct {
		name   string
		change func(p *migration.DiskPiece)
		kind   fault.Kind
		code   string
	}{
		{"a bit that flipped", func(p *migration.DiskPiece) { p.Data = bytes.Clone(p.Data); p.Data[10] ^= 1 }, fault.Invalid, "piece_checksum"},
		{"another checksum", func(p *migration.DiskPiece) { p.Sum = strings.Repeat("0", 64) }, fault.Invalid, "piece_checksum"},
		{"no checksum", func(p *migration.DiskPiece) { p.Sum = "" }, fault.Invalid, "piece_checksum"},
		{"fewer bytes", func(p *migration.DiskPiece) { p.Data = p.Data[:10] }, fault.Invalid, ""},
		{"an odd place", func(p *migration.DiskPiece) { p.Offset = 5 }, fault.Invalid, ""},
		{"before the start", func(p *migration.DiskPiece) { p.Offset = -migration.ShipBlock }, fault.Invalid, ""},
		{"behind the end", func(p *migration.DiskPiece) { p.Offset = 1 << 40 }, fault.Invalid, ""},
		{"zeros with data", func(p *migration.DiskPiece) { p.Zero = true }, fault.Invalid, ""},
		{"zeros without an end", func(p *migration.DiskPiece) {
			p.Offset, p.Zero, p.Data, p.Sum, p.Length, p.Size = 0, true, nil, "", 1<<62, 1<<62
		}, fault.Invalid, ""},
		{"no version", func(p *migration.DiskPiece) { p.Version = "" }, fault.Invalid, ""},
		{"another file", func(p *migration.DiskPiece) { p.Path = "/etc/passwd" }, fault.Forbidden, ""},
	} {
		p := good
		tt.change(&p)
		err := b.WriteDisk(t.Context(), ref, p)
		b.wantKind(tt.name, err, tt.kind)
		if tt.code != "" && !slices.Contains(codes(err), tt.code) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	far, err := b.ShippedSoFar(t.Context(), ref)
	if err != nil || far.Files[0].Bytes != 0 {
		t.Errorf("kept of broken pieces: %+v, %v", far, err)
	}
	b.wantKind("seal what is not whole", b.SealDisks(t.Context(), ref, migration.Shipped{Files: []migration.ShippedFile{{Path: disk, Bytes: good.Size}}}), fault.Busy)
	err = pump(a, b, r.Files, func(verb string) error {
		if verb == "SealDisks" {
			far, err := b.ShippedSoFar(t.Context(), ref)
			if err != nil {
				return err
			}
			far.Files[0].Sum = strings.Repeat("0", 64)
			b.wantKind("seal with another checksum", b.SealDisks(t.Context(), ref, far), fault.Forbidden)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.arrived()
	if err := b.Undo(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	b.wantKind("a piece that is late", b.WriteDisk(t.Context(), ref, good), fault.Forbidden)
	_, err = b.ShippedSoFar(t.Context(), ref)
	b.wantKind("a question that is late", err, fault.Forbidden)
	if _, _, there := w.Host("b").Data(disk); there || len(w.Host("b").Marked()) > 0 {
		t.Errorf("left at the destination: %v", w.Host("b").List())
	}
}

// TestWrite_AfterAPowerCut cuts the destination's power before every verb: what it says is
// durable is.
func TestWrite_AfterAPowerCut(t *testing.T) {
	a, b, w := rig(t)
	r := b.prepare(ref)
	killed, verbs := -1, 0
	for tries := 0; ; tries++ {
		verbs = -1
		err := pump(a, b, r.Files, func(string) error {
			if verbs++; verbs <= killed {
				return nil
			}
			killed = verbs
			w.PowerCut("b")
			b.restart()
			return errCut
		})
		if err == nil {
			break
		}
		if !errors.Is(err, errCut) || tries > 40 {
			t.Fatalf("try %d: %v", tries, err)
		}
	}
	w.PowerCut("b")
	b.arrived()
}

// TestSeal_NothingThatIsBeingWritten: a piece whose sender gave up may be written long after
// it was sent again, and then it would take back what the guest wrote.
func TestSeal_NothingThatIsBeingWritten(t *testing.T) {
	a, b, w := rig(t)
	r := b.prepare(ref)
	begun, goOn := make(chan struct{}), make(chan struct{})
	var first sync.Once
	w.OnStep(func(host, step, _ string) error {
		if host == "b" && step == diskstest.StepWrite {
			waits := false
			first.Do(func() { waits = true })
			if waits {
				close(begun)
				<-goOn
			}
		}
		return nil
	})
	stuck, last := make(chan error, 1), a.lastPiece()
	go func() { stuck <- b.WriteDisk(t.Context(), ref, last) }()
	<-begun
	b.wantKind("seal while a piece is being written", pump(a, b, r.Files, anyVerb), fault.Busy)
	if _, _, exists := w.Host("b").Data(disk); exists {
		t.Error("the file has its place, and is being written to")
	}
	close(goOn)
	if err := <-stuck; err != nil {
		t.Logf("the late piece: %v", err)
	}
	if err := pump(a, b, r.Files, anyVerb); err != nil {
		t.Fatalf("seal: %v", err)
	}
	b.arrived()
}
