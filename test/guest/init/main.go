// Command init is pid 1 of the test guest. It loads the virtio modules, answers
// as QEMU's guest agent where the guest has a channel for one, and
// for ever: writes memory and checks what it wrote before, writes a disk and
// reads it back, and prints a heartbeat on the serial console. A guest that was
// rebooted, lost a page or lost a block cannot hide it.
//
// Kernel arguments: dirty=MiB of memory it writes, rate=MiB/s (0: as fast as it
// can), busy=ms of that in turn with quiet=ms of nothing (0: always busy), hb=ms
// between heartbeats.
//
// One heartbeat is one line, read by package guest:
//
//	hb boot=4f1d… n=12 up=3.21 passes=4 mib=96 bad=0 diskbad=0 blocks=12
//
// boot is random at each boot; n counts heartbeats of this boot; passes and mib
// say how much memory was written and checked; bad counts pages and diskbad
// blocks that were not what was written last; blocks counts disk writes.
//
// It needs only the standard library, because the guest is built from its
// embedded source. Go serves as well as C here: the runtime needs no more of
// the system than /proc, and costs about a tenth of a second at boot.
package main

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	page  = 4096
	words = page / 8
)

// working is held by each turn of the guest's work. Who powers off takes it for good: a
// kernel that shuts its disk down fails what is still being written.
var working sync.Mutex

func main() {
	for _, m := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		_ = os.Mkdir(m[1], 0o755)
		if err := syscall.Mount(m[0], m[1], m[0], 0, ""); err != nil && err != syscall.EBUSY {
			say("mount %s: %v", m[1], err)
		}
	}
	console()
	loadModules()
	args := arguments()
	mib, rate, beat := args["dirty"], args["rate"], time.Duration(args["hb"])*time.Millisecond
	busy, quiet := time.Duration(args["busy"])*time.Millisecond, time.Duration(args["quiet"])*time.Millisecond

	go agent()

	id := bootID()
	boot := hex.EncodeToString(id[:])
	mem := newMemory(mib)
	disk := openDisk(id)
	before := disk.before()
	say("guest ready: boot=%s dirty=%dMiB rate=%dMiB/s disk=%dblocks cpus=%d memory=%dMiB vda=%dMiB before=%s kept=%d lost=%d up=%.2f",
		boot, mib, rate, disk.size(), runtime.NumCPU(), memoryMiB(), disk.mib, before.boot, before.kept, before.lost, uptime())

	var n, written, missed uint64
	begun := time.Now()
	next := begun
	for ; ; working.Unlock() {
		working.Lock()
		since := time.Since(begun)
		resting := quiet > 0 && since%(busy+quiet) >= busy
		if due := uint64(since.Seconds() * float64(rate)); resting && due > written+missed {
			missed = due - written // it is not made up for
		}
		var turn time.Duration // of the next MiB, since begun
		if rate > 0 {
			turn = time.Duration(written+missed) * time.Second / time.Duration(rate)
		}
		if len(mem.pages) > 0 && !resting && since >= turn {
			mem.step(1 << 20 / page)
			written++
		} else {
			pause := time.Until(next)
			switch {
			case resting:
				pause = min(pause, busy+quiet-since%(busy+quiet))
			case rate > 0 && len(mem.pages) > 0:
				pause = min(pause, turn-since)
			}
			time.Sleep(max(pause, time.Millisecond))
		}
		if now := time.Now(); !now.Before(next) {
			// Not next+beat: after a pause the missed beats are not made up for.
			next = now.Add(beat)
			n++
			disk.beat(n)
			say("hb boot=%s n=%d up=%.2f passes=%d mib=%d bad=%d diskbad=%d blocks=%d", boot, n, uptime(), mem.passes, written, mem.bad, disk.bad, disk.written)
		}
	}
}

// say prints one line in one write, so that lines do not mix with the kernel's.
func say(format string, args ...any) {
	_, _ = os.Stdout.WriteString(fmt.Sprintf(format, args...) + "\n")
}

// console makes the serial console our output; the kernel has done so already
// unless it found no /dev/console in the initrd.
func console() {
	if f, err := os.OpenFile("/dev/console", os.O_RDWR, 0); err == nil {
		for fd := range 3 {
			_ = syscall.Dup2(int(f.Fd()), fd)
		}
	}
}

// loadModules loads the modules named in /modules/order. Which needs which
// differs between kernels (virtio and virtio_ring have changed places), so what
// fails is tried again as long as another one could be loaded.
func loadModules() {
	b, _ := os.ReadFile("/modules/order")
	left := strings.Fields(string(b))
	for progress := true; progress && len(left) > 0; {
		progress = false
		var failed []string
		for _, m := range left {
			if err := loadModule("/modules/" + m); err != nil && err != syscall.EEXIST {
				failed = append(failed, m)
			} else {
				progress = true
			}
		}
		left = failed
	}
	if len(left) > 0 {
		say("modules not loaded: %s", strings.Join(left, " "))
	}
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	const finitModule = 313 // amd64
	parameters := [1]byte{}
	if _, _, errno := syscall.Syscall(finitModule, f.Fd(), uintptr(unsafe.Pointer(&parameters)), 0); errno != 0 {
		return errno
	}
	return nil
}

// bootID draws what tells this boot from any other. The kernel's generator is
// asked not to wait until it is good for keys (GRND_INSECURE, getrandom(2)):
// without KVM that takes a second. The clock makes up for what it lacks.
func bootID() (id [8]byte) {
	const getrandom, insecure = 318, 4
	_, _, _ = syscall.Syscall(getrandom, uintptr(unsafe.Pointer(&id)), uintptr(len(id)), insecure)
	binary.LittleEndian.PutUint64(id[:], mix(binary.LittleEndian.Uint64(id[:])^uint64(time.Now().UnixNano())))
	return id
}

// arguments reads our numbers from /proc/cmdline.
func arguments() map[string]int {
	out := map[string]int{"dirty": 16, "rate": 8, "busy": 0, "quiet": 0, "hb": 250}
	b, _ := os.ReadFile("/proc/cmdline")
	for f := range strings.FieldsSeq(string(b)) {
		k, v, _ := strings.Cut(f, "=")
		if _, ours := out[k]; ours {
			if i, err := strconv.Atoi(v); err == nil && i >= 0 {
				out[k] = i
			}
		}
	}
	out["hb"] = max(out["hb"], 10)
	return out
}

// uptime is seconds since boot.
func uptime() float64 {
	b, _ := os.ReadFile("/proc/uptime")
	s, _, _ := strings.Cut(string(b), " ")
	f, _ := strconv.ParseFloat(s, 64)
	return f
}

// memoryMiB is what the kernel has of memory; a part of the machine's is its own.
func memoryMiB() int {
	b, _ := os.ReadFile("/proc/meminfo")
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	kib, _ := strconv.Atoi(f[1]) // MemTotal: N kB
	return kib / 1024
}

// memory is the pages that are written and checked in turn.
type memory struct {
	pages  [][]uint64
	next   int
	passes uint64
	bad    uint64
}

func newMemory(mib int) *memory {
	m := &memory{}
	if mib == 0 {
		return m
	}
	b, err := syscall.Mmap(-1, 0, mib<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_POPULATE)
	if err != nil {
		say("cannot have %d MiB of memory: %v", mib, err)
		return m
	}
	all := unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), len(b)/8)
	for i := 0; i < len(all); i += words {
		m.pages = append(m.pages, all[i:i+words])
		m.write(i/words, 0)
	}
	return m
}

// mix spreads bits (the finalizer of splitmix64), so that no page is all zero
// or one repeated value: those QEMU would not send whole.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// places are the words of a page that are written: both ends and between, so
// that half an old page shows.
var places = [...]int{0, 1, 100, 255, 256, 400, words - 1}

func (m *memory) write(i int, pass uint64) {
	p := m.pages[i]
	for _, w := range places {
		p[w] = mix(uint64(i)<<32 | pass<<12 | uint64(w))
	}
}

// step checks and rewrites the next n pages.
func (m *memory) step(n int) {
	for range n {
		p := m.pages[m.next]
		for _, w := range places {
			if p[w] != mix(uint64(m.next)<<32|m.passes<<12|uint64(w)) {
				m.bad++
				break
			}
		}
		m.write(m.next, m.passes+1)
		if m.next++; m.next == len(m.pages) {
			m.next, m.passes = 0, m.passes+1
		}
	}
}

// disk is /dev/vda from its first block on, which belongs to the guest.
type disk struct {
	fd      int
	blocks  uint64 // how many are used in turn; 0: no disk
	mib     uint64 // its size
	label   bool   // there is room for the label: the block behind those that are used
	written uint64
	bad     uint64
	id      [8]byte
	buffer  []byte // page-aligned, as O_DIRECT wants
	want    []byte
}

func openDisk(id [8]byte) *disk {
	d := &disk{id: id, fd: -1, want: make([]byte, page)}
	// The device appears shortly after its module; where the disk is absent this
	// costs the guest the whole wait, so it is asked for only when the kernel
	// has found one.
	for range 50 {
		entries, _ := os.ReadDir("/sys/bus/virtio/devices")
		if _, err := os.Stat("/sys/class/block/vda"); err == nil || len(entries) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	fd, err := syscall.Open("/dev/vda", syscall.O_RDWR|syscall.O_SYNC|syscall.O_DIRECT, 0)
	if err != nil {
		return d
	}
	sectors, _ := os.ReadFile("/sys/class/block/vda/size")
	n, _ := strconv.ParseUint(strings.TrimSpace(string(sectors)), 10, 64)
	if d.buffer, err = syscall.Mmap(-1, 0, page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON); err != nil {
		return d
	}
	d.fd, d.mib, d.blocks = fd, n*512>>20, min(n*512/page, 1024)
	if d.label = n*512/page > d.blocks; !d.label && d.blocks > 0 {
		say("the disk is too small to remember who wrote it")
	}
	return d
}

func (d *disk) size() uint64 { return d.blocks }

// fill makes the content of one block as beat n writes it.
func (d *disk) fill(b []byte, n uint64) {
	seed := binary.LittleEndian.Uint64(d.id[:])
	for i := 0; i < page; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], mix(seed^n<<12^uint64(i)))
	}
}

// labelMark begins the block that says who wrote the others last: behind it come the
// boot's id and its last heartbeat, eight bytes each.
const labelMark = "berthlbl"

func (d *disk) writeLabel(n uint64) {
	clear(d.buffer)
	copy(d.buffer, labelMark)
	copy(d.buffer[8:], d.id[:])
	binary.LittleEndian.PutUint64(d.buffer[16:], n)
	if k, err := syscall.Pwrite(d.fd, d.buffer, int64(d.blocks)*page); err != nil || k != page {
		d.bad++
	}
}

// past is what an earlier boot has left on the disk.
type past struct {
	boot       string // "none" for none
	kept, lost int    // of its last blocks: as it wrote them, and otherwise
}

// before looks at what the boot before this one wrote last. The block of its very last
// heartbeat may be younger than the label.
func (d *disk) before() past {
	p := past{boot: "none"}
	if !d.label {
		return p
	}
	k, err := syscall.Pread(d.fd, d.buffer, int64(d.blocks)*page)
	if err != nil || k != page || string(d.buffer[:8]) != labelMark {
		return p
	}
	own := d.id
	defer func() { d.id, d.bad = own, 0 }()
	copy(d.id[:], d.buffer[8:])
	last := binary.LittleEndian.Uint64(d.buffer[16:])
	p.boot = hex.EncodeToString(d.id[:])
	for n := last; n > 0 && n+min(d.blocks-1, 128) > last; n-- {
		bad := d.bad
		if d.check(n); d.bad == bad {
			p.kept++
		} else {
			p.lost++
		}
	}
	return p
}

// beat writes the next block, reads it back, and reads one written long ago:
// that one shows whether a copied disk kept what was on it.
func (d *disk) beat(n uint64) {
	if d.blocks == 0 {
		return
	}
	d.fill(d.buffer, n)
	if k, err := syscall.Pwrite(d.fd, d.buffer, int64(n%d.blocks)*page); err != nil || k != page {
		d.bad++
	}
	d.written++
	d.check(n)
	if old := mix(n) % min(n, d.blocks); old > 0 {
		d.check(n - old)
	}
	if d.label {
		d.writeLabel(n)
	}
}

// check reads the block that beat n wrote.
func (d *disk) check(n uint64) {
	clear(d.buffer)
	d.fill(d.want, n)
	if k, err := syscall.Pread(d.fd, d.buffer, int64(n%d.blocks)*page); err != nil || k != page || string(d.buffer) != string(d.want) {
		d.bad++
	}
}

// agent answers what the hypervisor asks QEMU's guest agent, where the guest has
// its channel: whether it is there, to power off, and to freeze filesystems, of which it
// has one only in name (https://www.qemu.org/docs/master/interop/qemu-ga-ref.html).
func agent() {
	port := agentPort()
	if port == "" {
		return
	}
	f, err := os.OpenFile(port, os.O_RDWR, 0)
	if err != nil {
		say("agent: %v", err)
		return
	}
	say("agent ready: %s", port)
	frozen := false
	var line []byte
	buffer := make([]byte, page)
	for {
		n, err := f.Read(buffer)
		if n == 0 || err != nil {
			time.Sleep(50 * time.Millisecond) // nobody is at the other end
			continue
		}
		for _, b := range buffer[:n] {
			if b != '\n' {
				line = append(line, b)
				continue
			}
			if answer := obey(line, &frozen); answer != "" {
				_, _ = f.WriteString(answer + "\n")
			}
			line = line[:0]
		}
	}
}

// agentPort is the device of the agent's channel; its name comes shortly after its
// driver, and not at all where the guest has no channels.
func agentPort() string {
	for range 100 {
		if entries, _ := os.ReadDir("/sys/bus/virtio/drivers/virtio_console"); len(entries) == 0 {
			return "" // no such driver
		}
		ports, _ := os.ReadDir("/sys/class/virtio-ports")
		for _, p := range ports {
			name, _ := os.ReadFile("/sys/class/virtio-ports/" + p.Name() + "/name")
			if strings.TrimSpace(string(name)) == "org.qemu.guest_agent.0" {
				return "/dev/" + p.Name()
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return ""
}

// obey does one command and gives the answer, empty for what is no command. A
// client that comes anew may begin with the byte 0xff, and wants it back before
// the answer to guest-sync-delimited.
func obey(line []byte, frozen *bool) string {
	for len(line) > 0 && line[0] != '{' {
		line = line[1:]
	}
	var c struct {
		Execute   string `json:"execute"`
		Arguments struct {
			ID json.Number `json:"id"`
		} `json:"arguments"`
	}
	if json.Unmarshal(line, &c) != nil {
		return ""
	}
	was := *frozen
	count := map[bool]string{true: `{"return":1}`, false: `{"return":0}`}
	switch c.Execute {
	case "guest-sync":
		return `{"return":` + c.Arguments.ID.String() + `}`
	case "guest-sync-delimited":
		return "\xff" + `{"return":` + c.Arguments.ID.String() + `}`
	case "guest-ping":
		return `{"return":{}}`
	case "guest-shutdown": // has no answer
		working.Lock()
		say("guest shuts down")
		_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF) // the disk is written without a cache
	case "guest-fsfreeze-status":
		return map[bool]string{true: `{"return":"frozen"}`, false: `{"return":"thawed"}`}[was]
	case "guest-fsfreeze-freeze":
		*frozen = true
		return count[!was]
	case "guest-fsfreeze-thaw":
		*frozen = false
		return count[was]
	}
	return `{"error":{"class":"CommandNotFound","desc":"The command ` + c.Execute + ` has not been found"}}`
}
