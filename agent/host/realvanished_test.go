package host_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/internal/runtime"
	testlab "berth/test/lab"
	"berth/topology"
)

// TestReal_DefinitionNotLoaded_ReleasesNothing damages, hides and undefines real definitions
// of a real libvirtd: no claim goes with one that was not loaded, each with one that was
// undefined, while the agent watches and while it is down.
func TestReal_DefinitionNotLoaded_ReleasesNothing(t *testing.T) {
	l := testlab.Start(t, testlab.Options{Names: []string{"host-a"}})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	rt := new(runtime.System)
	t.Cleanup(rt.Wait)
	on := l.Hosts[0]
	n, tracker, store := realHost(t, rt, on, newPlacement())
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	virsh := func(args ...string) string {
		t.Helper()
		out, err := on.Virsh(ctx, args...)
		must("virsh "+strings.Join(args, " "), err)
		return out
	}
	restart := func() {
		t.Helper()
		must("stop libvirtd", on.StopLibvirtd(ctx))
		must("start libvirtd", on.StartLibvirtd(ctx))
	}
	create := func(names ...string) {
		t.Helper()
		for _, name := range names {
			_, err := n.Create(ctx, host.CreateRequest{
				Name: name, Flavor: topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 64, DiskGB: 1}, Machine: "q35", VirtType: "qemu", Disks: []host.CreateDisk{{SizeGB: 1}},
			})
			must("create "+name, err)
		}
	}
	claimed := func() (out []string) {
		for _, inst := range tracker.Instances() {
			if len(tracker.ByInstance(inst.UUID)) == 1 {
				out = append(out, inst.Name)
			}
		}
		slices.Sort(out)
		return out
	}
	kept := func() (out []string) {
		for _, h := range n.Vanished() {
			out = append(out, h.Name+" "+h.Reason.Code)
		}
		return out
	}
	follow := func() (stop func()) {
		following, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		rt.Go("follow", func() { done <- n.Follow(following) })
		stopped := false
		stop = func() {
			if !stopped {
				stopped = true
				cancel()
				must("follow", <-done)
			}
		}
		t.Cleanup(stop)
		return stop
	}
	await := func(what string, want []string, got func() []string) {
		t.Helper()
		waitFor(t, what, func() bool { return slices.Equal(got(), want) })
	}

	must("make a folder", os.MkdirAll(on.Path("/var/lib/libvirt/images"), 0o755))
	create("db", "web")
	stop := follow()
	all := []string{"db", "web"}

	file := on.Path("/etc/libvirt/qemu/web.xml")
	text, err := os.ReadFile(file)
	must("read the definition", err)
	write := func(text []byte) {
		t.Helper()
		// Nothing is written from outside into the host's own /etc.
		cmd, err := on.Command(ctx, "tee", "/etc/libvirt/qemu/web.xml")
		must("tee", err)
		cmd.Stdin = strings.NewReader(string(text))
		must("write the definition", on.Run(cmd))
	}
	write(text[:len(text)/2])
	restart()
	if list := virsh("list", "--all", "--name"); strings.Contains(list, "web") {
		t.Fatalf("libvirt has loaded half a definition: %s", list)
	}
	await("the damaged one to be named", []string{"web definition_not_loaded"}, kept)
	if got := claimed(); !slices.Equal(got, all) {
		t.Fatalf("claims of %v, want %v", got, all)
	}
	write(text)
	restart()
	await("both to be back", nil, kept)
	must("start the one that came back", n.Start(ctx, "web", true))
	must("stop it", n.Stop(ctx, "web", host.StopOptions{Force: true}))

	if _, err := on.Exec(ctx, "sh", "-c", "mkdir -p /run/libvirt/empty && mount --bind /run/libvirt/empty /etc/libvirt/qemu"); err != nil {
		t.Fatal(err)
	}
	restart()
	await("both to be named", []string{"db definitions_unreadable", "web definitions_unreadable"}, kept)
	if got := claimed(); !slices.Equal(got, all) {
		t.Fatalf("claims of %v, want %v", got, all)
	}
	if _, err := on.Exec(ctx, "umount", "/etc/libvirt/qemu"); err != nil {
		t.Fatal(err)
	}
	restart()
	await("both to be back", nil, kept)

	virsh("undefine", "db")
	await("the undefined one to go", []string{"web"}, claimed)

	again := func() {
		t.Helper()
		n.Close()
		n, tracker, store = realHostOn(t, rt, on, newPlacement(), store.Crash())
	}
	stop()
	virsh("undefine", "web")
	again()
	must("settle", n.Settle(ctx))
	await("the one that was undefined while no agent ran to go", nil, claimed)

	create("one", "two")
	stop = follow()
	await("both to be watched", []string{"one", "two"}, func() (out []string) {
		for _, c := range tracker.List() {
			if inst, _ := tracker.Instance(c.Owner.Instance); c.State == claims.Bound && c.Seen != nil {
				out = append(out, inst.Name)
			}
		}
		slices.Sort(out)
		return out
	})
	stop()
	virsh("undefine", "one")
	virsh("undefine", "two")
	again()
	must("settle", n.Settle(ctx))
	follow()
	await("both to be named", []string{"one vanished_together", "two vanished_together"}, kept)
	must("delete the one", deleted(n.Delete(ctx, "one", host.DeleteOptions{})))
	must("delete the other", deleted(n.Delete(ctx, "two", host.DeleteOptions{})))
	await("nothing to be left", nil, claimed)
}

// deleted is the error of a deletion, whatever files stay.
func deleted(_ host.Deleted, err error) error { return err }
