package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Packages are what a lab's hosts need on the machine.
func Packages() []string {
	out := []string{
		"libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients",
		"qemu-system-x86", "qemu-utils", "iproute2", "xz-utils",
	}
	// Debian 12's libvirt-daemon holds these drivers; later releases made
	// packages of them.
	if _, codename, err := osRelease(); err == nil && codename != "bookworm" {
		out = append(out, "libvirt-daemon-driver-nodedev", "libvirt-daemon-driver-storage")
	}
	return out
}

// NativePackages are what compiling and testing with cgo needs besides: the
// libvirt binding behind the build tag native, and the race detector.
func NativePackages() []string {
	return []string{"gcc", "libc6-dev", "pkg-config", "libvirt-dev"}
}

// PackagingPackages are what the tests of packaging read our rules and packages with:
// AppArmor's parser alone, for which no kernel needs to know it, rpm and lintian, and the
// shells and the manual's programs that read what is generated.
func PackagingPackages() []string {
	return []string{"apparmor", "rpm", "lintian", "man-db", "bsdextrautils", "bash-completion", "zsh", "fish"}
}

// EtcdPackages are what the tests of the fleet's records in etcd start members of.
func EtcdPackages() []string { return []string{"etcd-server"} }

// BusPackages are what the tests of systemd's delay of a shutdown start a bus of their own with.
func BusPackages() []string { return []string{"dbus-daemon"} }

// BrowserPackages are what the tests of the agent's page look at it with; without a font a
// browser shows boxes, and its certificates are put where it keeps them by NSS's own tools.
func BrowserPackages() []string {
	return []string{"chromium", "fonts-dejavu-core", "libnss3-tools", "openssl"}
}

// PrometheusPackages are what the tests of our rules and of the dashboard are held against.
func PrometheusPackages() []string { return []string{"prometheus", "curl"} }

// SystemdPackages are what the tests of our units boot a machine of its own with.
func SystemdPackages() []string { return []string{"systemd", "systemd-container", "dbus"} }

// backports are the packages whose files make the QEMU tree of a host. Their
// shared libraries come with the system's own qemu-system-x86.
var backports = []string{"qemu-system-x86", "qemu-system-common", "qemu-system-data", "qemu-utils", "seabios"}

// libvirtBackports make the libvirt tree of a host that runs a newer libvirt than
// the machine has. The network driver is not among them: from libvirt 11 on it
// ends a daemon that finds no firewall program.
var libvirtBackports = []string{
	"libvirt0", "libvirt-clients", "libvirt-common", "libvirt-daemon", "libvirt-daemon-common", "libvirt-daemon-driver-qemu",
	"libvirt-daemon-driver-nodedev", "libvirt-daemon-driver-storage", "libvirt-daemon-driver-interface", "libvirt-daemon-driver-secret",
	"libvirt-daemon-log", "libvirt-daemon-lock",
}

// guestModules are loaded by the guest. A kernel that has one built in ships no
// file for it.
var guestModules = []string{"virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk", "virtio_console", "virtio_balloon"}

// Missing lists what Install would have to add, in words; empty means a lab can
// start. It does not use the network and takes some hundredths of a second.
func Missing(ctx context.Context, packages ...string) ([]string, error) {
	have, err := installed(ctx, packages)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range packages {
		if have[p] == "" && !providedAs(p, have) {
			out = append(out, "package "+p)
		}
	}
	if slices.Contains(packages, "systemd-container") && !exists(LibvirtSystem()) {
		out = append(out, "libvirt's units in "+LibvirtSystem())
	}
	if !slices.Contains(packages, "qemu-system-x86") {
		return out, nil
	}
	if tree, err := qemuTree(have["qemu-system-x86"]); err == nil && tree != "" && !exists(tree) {
		out = append(out, "QEMU from backports in "+tree)
	}
	if tree, err := libvirtTree(have["libvirt-daemon"]); err == nil && tree != "" && !exists(tree) {
		out = append(out, "libvirt from backports in "+tree)
	}
	if k := KernelDir(); !exists(k) {
		out = append(out, "guest kernel in "+k)
	}
	return out, nil
}

// providedAs covers packages that newer releases replaced by another of the
// same use.
func providedAs(p string, have map[string]string) bool {
	return p == "pkg-config" && have["pkgconf"] != ""
}

// KernelDir holds the guest's kernel: vmlinuz and modules/*.ko, named
// in modules/order. Its name tells which modules were asked for, so that a cache
// from before another was is not taken for whole.
func KernelDir() string {
	sum := sha256.Sum256([]byte(strings.Join(guestModules, " ")))
	return filepath.Join(CacheDir(), "kernel-"+hex.EncodeToString(sum[:4]))
}

// LibvirtSystem holds the files of Debian's libvirt-daemon-system as they lie on a host: units and
// configuration of libvirt's. Machines that are booted by a systemd of their own take them from
// there; on the machine itself they would have daemons started.
func LibvirtSystem() string { return filepath.Join(CacheDir(), "libvirt-system") }

// QEMUFiles are what a machine that shares this one's files needs to run the QEMU that hosts
// run: files and folders in the cache, by where they belong. Empty where the system's own will do.
func QEMUFiles(ctx context.Context) (map[string]string, error) {
	have, err := installed(ctx, []string{"qemu-system-x86"})
	if err != nil {
		return nil, err
	}
	tree, err := qemuTree(have["qemu-system-x86"])
	if err != nil || tree == "" {
		return nil, err
	}
	files := map[string]string{}
	for _, pattern := range []string{"usr/bin/qemu-*", "usr/lib/*/qemu", "usr/share/qemu", "usr/share/seabios"} {
		found, err := filepath.Glob(filepath.Join(tree, pattern))
		if err != nil || len(found) == 0 {
			return nil, errors.Join(fmt.Errorf("nothing in %s is %s", tree, pattern), err)
		}
		for _, path := range found {
			files[strings.TrimPrefix(path, tree)] = path
		}
	}
	return files, nil
}

// qemuTree is the folder laid over /usr in every host, or empty where the
// system's QEMU, of the given package version, is new enough to migrate
// correctly without KVM.
func qemuTree(version string) (string, error) { return treeBelow("qemu", 9, version) }

// libvirtTree is the folder laid over /usr in the hosts of Options.Backports, or
// empty where the system's libvirt, of the given package version, is as new.
func libvirtTree(version string) (string, error) { return treeBelow("libvirt", 11, version) }

// treeBelow is the folder name in the cache for a package that is older than the
// major version enough.
func treeBelow(name string, enough int, version string) (string, error) {
	v := version
	if _, after, ok := strings.Cut(v, ":"); ok {
		v = after
	}
	major, _, _ := strings.Cut(v, ".")
	n, err := strconv.Atoi(major)
	if err != nil && version != "" {
		return "", fmt.Errorf("version of %s: %q", name, version)
	}
	if n >= enough {
		return "", nil
	}
	return filepath.Join(CacheDir(), name), nil
}

// Install adds what is missing: the named packages (Packages, NativePackages or
// both) to the machine, QEMU from the release's backports and a guest kernel to
// the cache. It prints short progress lines to log. It needs root and, when
// something is missing, the network. Killed half-way it leaves at most a
// temporary folder in the cache, and what was begun is done again.
func Install(ctx context.Context, log io.Writer, packages ...string) error {
	missing, err := Missing(ctx, packages...)
	if err != nil {
		return fmt.Errorf("install the lab: %w", err)
	}
	if len(missing) == 0 {
		fmt.Fprintln(log, "lab: everything is there")
		return nil
	}
	fmt.Fprintf(log, "lab: missing: %s\n", strings.Join(missing, ", "))
	if os.Getuid() != 0 {
		return fmt.Errorf("install the lab: must be root to add %s", strings.Join(missing, ", "))
	}
	id, codename, err := osRelease()
	if err != nil || id != "debian" || codename == "" {
		return errors.Join(fmt.Errorf("install the lab: this machine is %q %q; packages are installed on Debian 12 and later only, elsewhere add by hand: %s",
			id, codename, strings.Join(missing, ", ")), err)
	}
	cache := CacheDir()
	unlock, err := lockFile(filepath.Join(cache, ".lock"))
	if err != nil {
		return fmt.Errorf("install the lab: %w", err)
	}
	defer unlock()
	// What a killed install left.
	if left, _ := filepath.Glob(filepath.Join(cache, ".tmp-*")); len(left) > 0 {
		for _, d := range left {
			os.RemoveAll(d)
		}
	}
	a := &apt{dir: filepath.Join(cache, "apt"), codename: codename, log: log}

	have, err := installed(ctx, packages)
	if err != nil {
		return fmt.Errorf("install the lab: %w", err)
	}
	var add []string
	for _, p := range packages {
		if have[p] == "" && !providedAs(p, have) {
			add = append(add, p)
		}
	}
	if len(add) > 0 {
		fmt.Fprintf(log, "lab: installing %s (no service is started)\n", strings.Join(add, " "))
		if err := a.install(ctx, add); err != nil {
			return fmt.Errorf("install packages %s: %w", strings.Join(add, " "), err)
		}
		if have, err = installed(ctx, packages); err != nil {
			return fmt.Errorf("install the lab: %w", err)
		}
	}
	if slices.Contains(packages, "systemd-container") && !exists(LibvirtSystem()) {
		fmt.Fprintln(log, "lab: fetching libvirt's units")
		if err := fetch(ctx, LibvirtSystem(), func(tmp string) error { return fetchTree(ctx, a, tmp, "", []string{"libvirt-daemon-system"}) }); err != nil {
			return fmt.Errorf("fetch libvirt's units: %w", err)
		}
	}
	if slices.Contains(packages, "qemu-system-x86") {
		tree, err := qemuTree(have["qemu-system-x86"])
		if err != nil {
			return fmt.Errorf("install the lab: %w", err)
		}
		if tree != "" && !exists(tree) {
			fmt.Fprintf(log, "lab: fetching QEMU from %s-backports (QEMU %s corrupts memory in migrations without KVM)\n", codename, have["qemu-system-x86"])
			if err := fetch(ctx, tree, func(tmp string) error { return fetchTree(ctx, a, tmp, "/"+codename+"-backports", backports) }); err != nil {
				return fmt.Errorf("fetch QEMU from backports: %w", err)
			}
		}
		tree, err = libvirtTree(have["libvirt-daemon"])
		if err != nil {
			return fmt.Errorf("install the lab: %w", err)
		}
		if tree != "" && !exists(tree) {
			fmt.Fprintf(log, "lab: fetching libvirt from %s-backports (some hosts run it beside libvirt %s)\n", codename, have["libvirt-daemon"])
			if err := fetch(ctx, tree, func(tmp string) error { return fetchTree(ctx, a, tmp, "/"+codename+"-backports", libvirtBackports) }); err != nil {
				return fmt.Errorf("fetch libvirt from backports: %w", err)
			}
		}
		if !exists(KernelDir()) {
			fmt.Fprintln(log, "lab: fetching the guest's kernel")
			if err := fetch(ctx, KernelDir(), func(tmp string) error { return fetchKernel(ctx, a, tmp) }); err != nil {
				return fmt.Errorf("fetch the guest's kernel: %w", err)
			}
		}
	}
	// The lists are of today and of no use tomorrow.
	os.RemoveAll(a.dir)
	fmt.Fprintln(log, "lab: everything is there")
	return nil
}

// fetch fills a temporary folder beside target and renames it into place, so
// that target is either absent or whole.
func fetch(ctx context.Context, target string, fill func(tmp string) error) error {
	tmp, err := os.MkdirTemp(filepath.Dir(target), ".tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := fill(tmp); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return os.Rename(tmp, target)
}

// fetchTree extracts packages below tmp. from says of which archive ("/bookworm-backports"),
// empty that apt chooses.
func fetchTree(ctx context.Context, a *apt, tmp, from string, packages []string) error {
	dl := filepath.Join(tmp, ".dl")
	if err := os.Mkdir(dl, 0o755); err != nil {
		return err
	}
	var want []string
	for _, p := range packages {
		want = append(want, p+from)
	}
	debs, err := a.download(ctx, dl, want...)
	if err != nil {
		return err
	}
	for _, deb := range debs {
		if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "-x", deb, tmp)); err != nil {
			return err
		}
	}
	// Documentation is a third of the files and read by nobody here.
	os.RemoveAll(filepath.Join(tmp, "usr/share/doc"))
	os.RemoveAll(filepath.Join(tmp, "usr/share/man"))
	return os.RemoveAll(dl)
}

// fetchKernel takes the kernel and the few modules the guest loads out of the
// release's cloud kernel package.
func fetchKernel(ctx context.Context, a *apt, tmp string) error {
	pkg, err := a.dependsOn(ctx, "linux-image-cloud-amd64", "linux-image-")
	if err != nil {
		return err
	}
	dl := filepath.Join(tmp, ".dl")
	if err := os.Mkdir(dl, 0o755); err != nil {
		return err
	}
	debs, err := a.download(ctx, dl, pkg)
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(tmp, "modules"), 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", debs[0])
	var stderr tail
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	found, readErr := takeKernel(pipe, tmp)
	_, _ = io.Copy(io.Discard, pipe)
	if err := cmd.Wait(); err != nil {
		return commandError(cmd, err, stderr.String())
	}
	if readErr != nil {
		return readErr
	}
	if !exists(filepath.Join(tmp, "vmlinuz")) {
		return fmt.Errorf("package %s holds no boot/vmlinuz", pkg)
	}
	var order strings.Builder
	for _, m := range guestModules {
		if slices.Contains(found, m) {
			order.WriteString(m + ".ko\n")
		}
	}
	if err := os.WriteFile(filepath.Join(tmp, "modules/order"), []byte(order.String()), 0o644); err != nil {
		return err
	}
	return os.RemoveAll(dl)
}

// takeKernel writes vmlinuz and the guest's modules, decompressed, below dir
// and returns the names of the modules it met.
func takeKernel(r io.Reader, dir string) (found []string, err error) {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return found, nil
		} else if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		base := path.Base(h.Name)
		name, ext, _ := strings.Cut(base, ".")
		target := ""
		switch {
		case strings.HasPrefix(base, "vmlinuz-"):
			target = filepath.Join(dir, "vmlinuz")
		case strings.HasPrefix(ext, "ko") && slices.Contains(guestModules, name):
			target = filepath.Join(dir, "modules", name+".ko")
			found = append(found, name)
		default:
			continue
		}
		b, err := io.ReadAll(t)
		if err != nil {
			return nil, err
		}
		if ext == "ko.xz" && name != "vmlinuz" {
			cmd := exec.Command("xz", "-dc")
			cmd.Stdin = bytes.NewReader(b)
			if b, err = cmd.Output(); err != nil {
				return nil, fmt.Errorf("decompress %s: %w", base, err)
			}
		}
		if err := os.WriteFile(target, b, 0o644); err != nil {
			return nil, err
		}
	}
}

// exists reports whether path is there; an unreadable path counts as absent and
// fails where it is used.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// tail keeps what a command printed; memory is bounded by dropping the middle
// of very long output, of which only the end is ever shown.
type tail struct{ bytes.Buffer }

// Write keeps at most the newest megabyte or so.
func (t *tail) Write(p []byte) (int, error) {
	if t.Len() > 1<<20 {
		t.Next(t.Len() - 1<<19)
	}
	return t.Buffer.Write(p)
}
