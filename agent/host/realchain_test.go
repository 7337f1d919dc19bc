package host_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"berth/test/guest"
	testlab "berth/test/lab"
)

// TestReal_LibvirtReadsNoHeaderOfAClosedChain starts an instance with real libvirt and QEMU whose
// image has another backing file in its header than the domain XML says. Where that says all,
// libvirt and QEMU open nothing else; where it leaves the end open they follow the header. Sockets
// in libvirt's private folders are left out of what is defined: libvirt makes its own.
func TestReal_LibvirtReadsNoHeaderOfAClosedChain(t *testing.T) {
	l := testlab.Start(t, testlab.Options{Listen: true})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	h := l.Hosts[0]
	const images = "/var/lib/libvirt/images"
	if err := os.MkdirAll(h.Path(images), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := h.Exec(ctx, args...); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	virsh := func(args ...string) string {
		t.Helper()
		out, err := h.Virsh(ctx, args...)
		if err != nil {
			t.Fatalf("virsh %v: %v\n%s", args, err, out)
		}
		return out
	}
	run("qemu-img", "create", "-q", "-f", "qcow2", images+"/template.qcow2", "1M")
	run("qemu-img", "create", "-q", "-f", "raw", images+"/secret", "1M")
	run("qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", images+"/secret", images+"/i.qcow2", "1M")
	const template = "<backingStore type='file'><format type='qcow2'/><source file='" + images + "/template.qcow2'/>"
	for _, tt := range []struct {
		name, chain   string
		secret, below bool
	}{
		{"open", "", true, false},
		{"closed", "<backingStore/>", false, false},
		{"closed below another", template + "<backingStore/></backingStore>", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := fmt.Sprintf(`<domain type='qemu'><name>i</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='%s'>hvm</type></os><features><acpi/></features><devices>
				<disk type='file'><driver name='qemu' type='qcow2'/><source file='%s/i.qcow2'/>%s<target dev='vda' bus='virtio'/></disk></devices></domain>`, guest.Machine, images, tt.chain)
			if err := os.WriteFile(h.Path("/tmp/i.xml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			virsh("create", "/tmp/i.xml", "--paused")
			defer virsh("destroy", "i")
			nodes := virsh("qemu-monitor-command", "i", `{"execute":"query-named-block-nodes","arguments":{"flat":true}}`)
			for path, want := range map[string]bool{"/secret": tt.secret, "/template.qcow2": tt.below} {
				// The name of an open file, not what a header says.
				open := strings.Contains(nodes, `"file":"`+images+path+`"`)
				seen := strings.Contains(virsh("dumpxml", "i"), images+path+"'")
				if open != want || seen != want {
					t.Errorf("%s: QEMU has it open: %v, libvirt names it: %v, want %v\n%s", path, open, seen, want, nodes)
				}
			}
		})
	}
	t.Run("private folders", func(t *testing.T) {
		text := fmt.Sprintf(`<domain type='qemu'><name>i</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='%s'>hvm</type></os><features><acpi/></features><devices>
			<graphics type='vnc'><listen type='socket' socket='/var/lib/libvirt/qemu/domain-3-other/vnc.sock'/></graphics>
			<channel type='unix'><source mode='bind' path='/var/lib/libvirt/qemu/channel/target/domain-3-other/org.qemu.guest_agent.0'/><target type='virtio' name='org.qemu.guest_agent.0'/></channel></devices></domain>`, guest.Machine)
		if err := os.WriteFile(h.Path("/tmp/i.xml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		virsh("define", "/tmp/i.xml")
		defer virsh("undefine", "i")
		if got := virsh("dumpxml", "--inactive", "i"); strings.Contains(got, "domain-3-other") {
			t.Errorf("libvirt keeps a socket in a private folder:\n%s", got)
		}
	})
	t.Run("names of folders", func(t *testing.T) {
		text := fmt.Sprintf(`<domain type='qemu'><name>an-instance-with-a-long-name</name><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='%s'>hvm</type></os><features><acpi/></features><devices>
			<graphics type='vnc'><listen type='socket'/></graphics>
			<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel></devices></domain>`, guest.Machine)
		if err := os.WriteFile(h.Path("/tmp/i.xml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		virsh("create", "/tmp/i.xml", "--paused")
		defer virsh("destroy", "an-instance-with-a-long-name")
		got := virsh("dumpxml", "--migratable", "an-instance-with-a-long-name")
		t.Log(got)
		for _, line := range strings.Split(virsh("dumpxml", "an-instance-with-a-long-name"), "\n") {
			if strings.Contains(line, "/libvirt/qemu/") && !strings.Contains(line, "-an-instance-with-a-l/") {
				t.Errorf("another folder than is expected: %s", line)
			}
		}
	})
}
