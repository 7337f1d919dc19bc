//go:build native

package native

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	lv "libvirt.org/go/libvirt"

	"berth/driver/libvirt"
)

// everything calls each method of a connection that can be called on libvirt's
// test driver, those that are refused too, and then ends it.
func everything(t *testing.T) *conn {
	t.Helper()
	opened, err := Dial(t.Context(), libvirt.Target{URI: "test:///default"})
	if err != nil {
		t.Fatal(err)
	}
	c := opened.(*conn)
	seen := make(chan libvirt.Event, 64)
	errs := []error{
		c.Subscribe(func(e libvirt.Event) { seen <- e }),
		c.SubscribeDevices(func(libvirt.DeviceEvent) {}),
	}
	id := uuid.NewString()
	xml := fmt.Sprintf("<domain type='test'><name>%s</name><uuid>%s</uuid><memory>65536</memory><os><type>hvm</type></os></domain>", id, id)
	errs = append(errs, c.Define(xml), c.Create(id, 0), c.Suspend(id), c.Resume(id), c.SetAutostart(id, true))
	for range 2 { // of what is there, then of what has gone
		for _, f := range []func() error{
			func() error { _, err := c.List(0); return err },
			func() error { _, err := c.Stats(1, 0); return err },
			func() error { _, err := c.Stats(1, 1<<30); return err },
			func() error { _, err := c.LookupName(id); return err },
			func() error { _, err := c.LookupUUID(id); return err },
			func() error { _, err := c.State(id); return err },
			func() error { _, err := c.Info(id); return err },
			func() error { _, err := c.IsPersistent(id); return err },
			func() error { _, err := c.Autostart(id); return err },
			func() error { _, err := c.XML(id, 0); return err },
			func() error { _, err := c.Capabilities(); return err },
			func() error { _, err := c.DomainCapabilities("", "", "", "", 0); return err },
			func() error { _, err := c.Devices(); return err },
			func() error { _, err := c.DeviceXML("computer"); return err },
			func() error { _, err := c.DeviceXML("none"); return err },
			func() error { _, _, err := c.JobStats(id, 0); return err },
			func() error { _, _, err := c.BlockJob(id, "vda"); return err },
			func() error { _, err := c.Agent(id, "{}", 1); return err },
			func() error { _, err := c.Monitor(id, "{}"); return err },
			func() error { return c.CompareCPU(libvirt.CPU{XML: "<cpu/>"}, 0) },
			func() error { _, err := c.BaselineHypervisorCPU(libvirt.CPU{}, []string{"<cpu/>"}, 0); return err },
			func() error {
				return c.Migrate(id, "test:///default", []libvirt.Param{{Name: "bandwidth", Value: uint64(1)}, {Name: "compression", Value: "mt"}, {Name: "parallel.connections", Value: 2}}, 1<<1)
			},
			func() error { return c.AbortJob(id, 0) },
			func() error { return c.AbortJob(id, 1) },
			func() error { _, err := c.MaxSpeed(id); return err },
			func() error { return c.SetMaxSpeed(id, 1, 0) },
			func() error { return c.StartPostCopy(id) },
			func() error { return c.Create(id, 0) },
		} {
			_ = f() // much of it is refused, which is wanted
		}
		_, _ = c.Destroy(id), c.Undefine(id, 0) // refused the second time
	}
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	// libvirt frees a callback only when none runs: all that is coming has to come,
	// and its event loop to be past it.
	for undefined := false; !undefined; {
		select {
		case e := <-seen:
			undefined = e.UUID == id && e.ID == libvirt.LifecycleEvent && e.Event == 1
		case <-time.After(10 * time.Second):
			t.Fatal("no event that the domain was undefined within 10 s")
		}
	}
	past := make(chan struct{})
	timer, err := lv.EventAddTimeout(0, func(timer int) {
		lv.EventUpdateTimeout(timer, -1)
		close(past)
	})
	if err != nil {
		t.Fatal(err)
	}
	<-past
	if err := lv.EventRemoveTimeout(timer); err != nil {
		t.Error(err)
	}
	c.Close()
	return c
}

// The C library counts the objects of a connection: one that was not freed keeps
// it. Memory that belongs to no object, documents above all, shows in what the
// process has resident: the 700 turns measured read about 7 MB of documents.
func TestNative_FreesEveryObject(t *testing.T) {
	turns := func(n int) {
		for range n {
			if c := everything(t); c.left != 0 {
				t.Fatalf("%d references to the connection remain", c.left)
			}
		}
	}
	turns(300) // what the allocators keep for themselves
	before := resident(t)
	turns(700)
	grown := resident(t) - before
	t.Logf("%d KiB more are resident after 700 connections", grown>>10)
	if grown > 3<<20 {
		t.Errorf("the process has grown by %d KiB, want less than 3 MiB", grown>>10)
	}
}

func TestNative_SeesAnObjectThatIsNotFreed(t *testing.T) {
	opened, err := Dial(t.Context(), libvirt.Target{URI: "test:///default"})
	if err != nil {
		t.Fatal(err)
	}
	c := opened.(*conn)
	d, err := c.l.LookupDomainByName("test")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if c.left != 1 {
		t.Errorf("%d references remain beside a domain that was not freed, want 1", c.left)
	}
	free(d)
}

// resident is what the process has in memory, after the garbage has gone.
func resident(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int
	if _, err := fmt.Fscan(strings.NewReader(string(text)), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
