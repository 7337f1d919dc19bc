package guest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/guest"
	"berth/test/lab"
)

// boot defines and starts a guest with a local disk and waits for heartbeats.
func boot(t *testing.T, ctx context.Context, h *lab.Host, o guest.Options) []guest.Beat {
	t.Helper()
	xml := filepath.Join(h.Path("/var/lib/libvirt"), o.Name+".xml")
	if err := os.WriteFile(xml, []byte(guest.DomainXML(o)), 0o644); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for _, args := range [][]string{{"define", "/var/lib/libvirt/" + o.Name + ".xml"}, {"start", o.Name}} {
		if _, err := h.Virsh(ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("start took %.2f s", time.Since(begun).Seconds())
	beats, err := guest.WaitBeat(ctx, h.Console(o.Name), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("first heartbeats %.2f s after the start was asked, guest uptime %.2f s", time.Since(begun).Seconds(), beats[0].Uptime)
	return beats
}

// disk makes an empty qcow2 on each host.
func disk(t *testing.T, ctx context.Context, path, size string, hosts ...*lab.Host) {
	t.Helper()
	for _, h := range hosts {
		if err := os.MkdirAll(filepath.Dir(h.Path(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Exec(ctx, "qemu-img", "create", "-q", "-f", "qcow2", path, size); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGuest_SurvivesLiveMigrationWithItsDisk(t *testing.T) {
	l := lab.Start(t, lab.Options{Listen: true})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	a, b := l.Hosts[0], l.Hosts[1]
	g, err := guest.Build(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	const image = "/var/lib/libvirt/images/g1.qcow2"
	disk(t, ctx, image, "32M", a, b)
	boot(t, ctx, a, guest.Options{Name: "g1", Guest: g, Disks: []guest.Disk{{Path: image}}, Beat: 100 * time.Millisecond})

	begun := time.Now()
	if _, err := a.Virsh(ctx, "migrate", "--live", "--p2p", "--tls", "--copy-storage-all", "--persistent", "--bandwidth", "40",
		"g1", "qemu+tls://"+b.Name+"/system"); err != nil {
		t.Fatal(err)
	}
	t.Logf("migration took %.2f s", time.Since(begun).Seconds())
	source, err := guest.ReadConsole(a.Console("g1"))
	if err != nil {
		t.Fatal(err)
	}
	// Whole passes over its memory, so that every page was checked after the move.
	var destination []guest.Beat
	for n := 10; ; n += 10 {
		if destination, err = guest.WaitBeat(ctx, b.Console("g1"), n); err != nil {
			t.Fatal(err)
		}
		if last := destination[len(destination)-1]; last.Passes >= source[len(source)-1].Passes+2 {
			break
		}
	}
	proof, err := guest.Continuity(source, destination)
	if err != nil {
		t.Fatal(err)
	}
	if proof.Blocks == 0 {
		t.Error("the guest wrote no disk")
	}
	t.Log(proof)
	if state, err := a.Virsh(ctx, "domstate", "--reason", "g1"); err != nil || state != "shut off (migrated)" {
		t.Errorf("the source's domain is %q, %v; want shut off (migrated)", state, err)
	}
}

func TestGuest_GoesOnWhenTheMigrationLinkIsCut(t *testing.T) {
	l := lab.Start(t, lab.Options{Listen: true})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	a, b := l.Hosts[0], l.Hosts[1]
	g, err := guest.Build(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	boot(t, ctx, a, guest.Options{Name: "g2", Guest: g, Dirty: 32, Rate: 30, Beat: 100 * time.Millisecond})
	cmd, err := a.VirshCommand(ctx, "migrate", "--live", "--p2p", "--bandwidth", "10", "g2", "qemu+tls://"+b.Name+"/system")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(cmd); err != nil {
		t.Fatal(err)
	}
	moved := func(want func(last, now string) bool) string {
		t.Helper()
		last := ""
		for {
			info, err := a.Virsh(ctx, "domjobinfo", "g2")
			if err != nil {
				t.Fatal(err)
			}
			now := ""
			for line := range strings.Lines(info) {
				if v, ok := strings.CutPrefix(line, "Data processed:"); ok {
					now = strings.TrimSpace(v)
				}
			}
			if want(last, now) {
				return now
			}
			last = now
			select {
			case <-ctx.Done():
				t.Fatalf("job stays at %q", now)
			case <-time.After(700 * time.Millisecond):
			}
		}
	}
	moved(func(last, now string) bool { return last != "" && last != "0.000 B" && now != last })
	if err := b.Cut(ctx, lab.Mig); err != nil {
		t.Fatal(err)
	}
	stuck := moved(func(last, now string) bool { return last == now })
	if err := b.Heal(ctx, lab.Mig); err != nil {
		t.Fatal(err)
	}
	moved(func(last, now string) bool { return now != stuck })
	if _, err := a.Virsh(ctx, "domjobabort", "g2"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("virsh migrate reported success of an aborted migration")
	}
	before, err := guest.ReadConsole(a.Console("g2"))
	if err != nil {
		t.Fatal(err)
	}
	after, err := guest.WaitBeat(ctx, a.Console("g2"), len(before)+10)
	if err != nil {
		t.Fatal(err)
	}
	proof, err := guest.Healthy(after)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(proof)
}
