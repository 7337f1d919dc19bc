package host_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"berth/agent/host"
	"berth/internal/runtime"
	"berth/test/guest"
	testlab "berth/test/lab"
	"berth/topology"
)

// TestReal_ATemplateOutlivesItsClones deletes an instance with its disks while others stand
// on its disk, with real libvirt, storage pools and qemu-img, by each way in which a
// definition leads to a file. The last row has none, and there the file goes.
func TestReal_ATemplateOutlivesItsClones(t *testing.T) {
	l := testlab.Start(t, testlab.Options{Listen: true})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	g, err := guest.Build(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	rt := new(runtime.System)
	t.Cleanup(rt.Wait)
	h := l.Hosts[0]
	node, _, _ := realHost(t, rt, h, newPlacement())
	const images = "/var/lib/libvirt/images"
	if err := os.MkdirAll(h.Path(images), 0o755); err != nil {
		t.Fatal(err)
	}
	at := t // the row that is tried
	run := func(args ...string) string {
		at.Helper()
		out, err := h.Exec(ctx, args...)
		if err != nil {
			at.Fatalf("%v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(out)
	}
	virsh := func(args ...string) {
		at.Helper()
		if out, err := h.Virsh(ctx, args...); err != nil {
			at.Fatalf("virsh %v: %v\n%s", args, err, out)
		}
	}
	define := func(verb, disk string) {
		at.Helper()
		text := fmt.Sprintf(`<domain type='qemu'><name>clone</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='%s'>hvm</type></os><features><acpi/></features>
			<devices>%s</devices></domain>`, guest.Machine, disk)
		if err := os.WriteFile(h.Path("/tmp/clone.xml"), []byte(text), 0o644); err != nil {
			at.Fatal(err)
		}
		args := []string{verb, "/tmp/clone.xml"}
		if verb == "create" {
			args = append(args, "--paused")
		}
		virsh(args...)
	}
	file := `<disk type='file'><driver name='qemu' type='qcow2'/><source file='/var/lib/libvirt/images/clone.qcow2'/><target dev='vda' bus='virtio'/></disk>`
	volume := `<disk type='volume'><driver name='qemu' type='qcow2'/><source pool='images' volume='clone.qcow2'/><target dev='vda' bus='virtio'/></disk>`
	const template = images + "/template-vda.qcow2"
	overlay := func(backing string) {
		run("qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", backing, images+"/clone.qcow2", "1G")
	}
	virsh("pool-define-as", "images", "dir", "--target", images)
	virsh("pool-start", "images")
	for _, c := range []struct {
		name string
		make func(t *testing.T)
		goes bool
	}{
		{"a file", func(*testing.T) { overlay(template); define("define", file) }, false},
		{"a name of json", func(*testing.T) {
			overlay(`json:{"driver":"qcow2","file":{"driver":"file","filename":"` + template + `"}}`)
			define("define", file)
		}, false},
		{"a name with a protocol", func(*testing.T) { overlay("file:" + template); define("define", file) }, false},
		{"a relative name", func(*testing.T) { overlay("template-vda.qcow2"); define("define", file) }, false},
		{"a volume", func(*testing.T) { overlay(template); virsh("pool-refresh", "images"); define("define", volume) }, false},
		{"a volume that its pool has not read", func(*testing.T) {
			virsh("pool-refresh", "images")
			overlay(template)
			define("define", volume)
		}, false},
		{"a volume of a pool that is not active", func(t *testing.T) {
			overlay(template)
			define("define", volume)
			virsh("pool-destroy", "images")
			t.Cleanup(func() { virsh("pool-start", "images") })
		}, false},
		{"a volume of a pool that is gone", func(t *testing.T) {
			overlay(template)
			define("define", strings.ReplaceAll(volume, "'images'", "'none'"))
		}, false},
		{"a volume of one that runs", func(*testing.T) {
			overlay(template)
			virsh("pool-refresh", "images")
			define("create", volume)
		}, false},
		{"a device", func(t *testing.T) {
			run("truncate", "-s", "8M", images+"/device")
			loop, err := h.Exec(ctx, "losetup", "-f", "--show", images+"/device")
			if err != nil {
				t.Skipf("no loop device: %v", err)
			}
			loop = strings.TrimSpace(loop)
			t.Cleanup(func() { run("losetup", "-d", loop) })
			run("qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", template, loop, "1G")
			define("define", `<disk type='block'><driver name='qemu' type='qcow2'/><source dev='`+loop+`'/><target dev='vda' bus='virtio'/></disk>`)
		}, false},
		{"nothing", func(*testing.T) {
			run("qemu-img", "create", "-q", "-f", "qcow2", images+"/clone.qcow2", "1G")
			define("define", file)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			at = t
			if _, err := node.Create(ctx, host.CreateRequest{
				Name: "template", Flavor: topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 128, DiskGB: 1},
				Kernel: g.Kernel, Initrd: g.Initrd, Machine: guest.Machine, VirtType: "qemu", Disks: []host.CreateDisk{{SizeGB: 1}},
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_, _ = h.Virsh(ctx, "destroy", "clone")
				_, _ = h.Virsh(ctx, "undefine", "clone")
				_ = os.Remove(h.Path(images + "/clone.qcow2"))
				_ = os.Remove(h.Path(images + "/device"))
				_ = os.Remove(h.Path(template))
			})
			c.make(t)
			left, err := node.Delete(ctx, "template", host.DeleteOptions{Disks: true})
			if err != nil {
				t.Fatal(err)
			}
			_, err = os.Stat(h.Path(template))
			if there := err == nil; there == c.goes {
				t.Errorf("the template is there: %v (%v)", there, left.Kept)
			}
			if c.goes {
				if len(left.Kept) > 0 {
					t.Errorf("kept %+v", left.Kept)
				}
				return
			}
			if len(left.Kept) != 1 || left.Kept[0].Path != template || !strings.Contains(left.Kept[0].Reason, "clone") || left.Kept[0].Change == "" {
				t.Errorf("kept %+v, want the template, because of clone", left.Kept)
			}
		})
	}
}
