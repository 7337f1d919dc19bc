package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"os"
	"strings"
	"time"
)

// Machine is the machine type of test guests: versioned, as a live migration
// needs, and known to every QEMU a lab runs.
const Machine = "pc-q35-7.2"

// Options describe a domain that boots the guest.
type Options struct {
	Name      string
	UUID      string        // empty: made from the name
	MemoryMiB int           // 0: 128
	VCPUs     int           // 0: 1
	Disks     []Disk        // the first is written and checked by the guest, from its first block
	Dirty     int           // MiB of memory the guest writes in turn; 0: 16, negative: none
	Rate      int           // MiB/s of it; 0: 8, negative: as fast as it can
	Busy      time.Duration // it writes memory for so long, and rests for Quiet, in turn
	Quiet     time.Duration // 0: it never rests
	Beat      time.Duration
	Guest     Guest
	CPU       string // a <cpu> element; empty: qemu64, exactly
	Emulator  string // empty: /usr/bin/qemu-system-x86_64
	Metadata  string // put into <metadata>
	Devices   string // put into <devices>
	Elements  string // put into <domain>: memoryBacking, cputune, numatune
}

// Disk is a file, the same path on every host.
type Disk struct {
	Path   string
	Format string // empty: qcow2
	Cache  string // empty: the hypervisor's default
}

// quick cuts what costs boot time without KVM, a third of it: self-tests of ciphers,
// certificates, tracing, a keyboard, and what hardens a kernel. What the guest and the
// hypervisor see of each other is untouched by it.
const quick = "quiet loglevel=3 nokaslr tsc=reliable no_timer_check mitigations=off random.trust_cpu=on 8250.nr_uarts=1" +
	" cryptomgr.notests rodata=off noreplace-smp init_on_alloc=0 lsm= ipv6.disable=1" +
	" initcall_blacklist=init_kprobe_trace,load_system_certificate_list,i8042_init,cubictcp_register,oom_init"

// Cmdline is the kernel command line for these options.
func (o Options) Cmdline() string {
	line := fmt.Sprintf("console=ttyS0 "+quick+" panic=-1 dirty=%d rate=%d hb=%d",
		max(or(o.Dirty, 16), 0), max(or(o.Rate, 8), 0), or(o.Beat, 250*time.Millisecond).Milliseconds())
	if o.Quiet > 0 {
		line += fmt.Sprintf(" busy=%d quiet=%d", o.Busy.Milliseconds(), o.Quiet.Milliseconds())
	}
	return line
}

// DomainXML is a domain of type qemu with direct kernel boot, a q35 machine, and
// a serial console written to /var/log/libvirt/NAME.console, which is each
// host's own. It has no network, balloon, USB or video: each costs start-up
// time.
func DomainXML(o Options) string {
	if o.UUID == "" {
		sum := sha256.Sum256([]byte("berth test guest " + o.Name))
		sum[6], sum[8] = sum[6]&0x0f|0x40, sum[8]&0x3f|0x80
		s := hex.EncodeToString(sum[:16])
		o.UUID = s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
	}
	var disks strings.Builder
	for i, d := range o.Disks {
		cache := ""
		if d.Cache != "" {
			cache = " cache='" + escape(d.Cache) + "'"
		}
		fmt.Fprintf(&disks, `    <disk type='file' device='disk'>
      <driver name='qemu' type='%s'%s/>
      <source file='%s'/>
      <target dev='vd%c' bus='virtio'/>
    </disk>
`, escape(or(d.Format, "qcow2")), cache, escape(d.Path), 'a'+i)
	}
	metadata := ""
	if o.Metadata != "" {
		metadata = "  <metadata>" + o.Metadata + "</metadata>\n"
	}
	return fmt.Sprintf(`<domain type='qemu'>
  <name>%s</name>
  <uuid>%s</uuid>
%s  <memory unit='MiB'>%d</memory>
  <vcpu placement='static'>%d</vcpu>
%s  <os>
    <type arch='x86_64' machine='%s'>hvm</type>
    <kernel>%s</kernel>
    <initrd>%s</initrd>
    <cmdline>%s</cmdline>
  </os>
  <features><acpi/></features>
  %s
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>destroy</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>%s</emulator>
%s    <serial type='file'>
      <source path='/var/log/libvirt/%s.console' append='on'/>
      <target port='0'/>
    </serial>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <video><model type='none'/></video>
%s  </devices>
</domain>
`, escape(o.Name), escape(o.UUID), metadata, or(o.MemoryMiB, 128), or(o.VCPUs, 1), o.Elements, Machine,
		escape(o.Guest.Kernel), escape(o.Guest.Initrd), escape(o.Cmdline()),
		or(o.CPU, "<cpu mode='custom' match='exact'><model fallback='forbid'>qemu64</model></cpu>"),
		escape(or(o.Emulator, "/usr/bin/qemu-system-x86_64")), disks.String(), escape(o.Name), o.Devices)
}

// or is v, or what stands for its zero.
func or[T comparable](v, zero T) T {
	if v == *new(T) {
		return zero
	}
	return v
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a builder takes everything
	return b.String()
}

// WaitBeat waits until the console file holds at least n heartbeats and returns
// all it holds; the file may not exist yet.
func WaitBeat(ctx context.Context, console string, n int) ([]Beat, error) {
	for {
		beats, err := ReadConsole(console)
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		if len(beats) >= n {
			return beats, nil
		}
		select {
		case <-ctx.Done():
			text, _ := os.ReadFile(console)
			return beats, fmt.Errorf("wait for %d heartbeats in %s: %d so far: %w; it ends with %q", n, console, len(beats), context.Cause(ctx), text[max(0, len(text)-300):])
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ReadConsole is ParseConsole of a file.
func ReadConsole(path string) ([]Beat, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ParseConsole(f)
}
