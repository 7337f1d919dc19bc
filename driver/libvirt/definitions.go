package libvirt

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"berth/driver"
	"berth/internal/fault"
)

// systemDefinitions is where libvirtd and virtqemud keep the definitions of qemu:///system, as
// NAME.xml (virQEMUDriverConfigNew). The folder holds autostart and networks, too.
const systemDefinitions = "/etc/libvirt/qemu"

// definitionEnough is how much is read of a definition: libvirt writes the uuid near its top.
const definitionEnough = 1 << 20

var definedUUID = regexp.MustCompile(`<uuid>\s*([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})\s*</uuid>`)

var _ driver.DefinitionReader = (*Driver)(nil)

// Definitions implements driver.DefinitionReader. It reads files of this machine, not libvirt.
func (d *Driver) Definitions(context.Context) (driver.Definitions, error) {
	dir := d.o.DefinitionDir
	if dir == "" {
		dir = definitionDir(d.o.URI, os.Getenv)
	}
	if dir == "" {
		return driver.Definitions{}, fault.New(fault.Unavailable, "read libvirt's definitions: %s does not tell where they are", d.o.URI)
	}
	out, err := readDefinitions(dir)
	if err != nil {
		return out, fault.New(fault.Unavailable, "read libvirt's definitions: %w", err)
	}
	return out, nil
}

// definitionDir is where libvirt keeps the definitions of a connection; empty where that is
// not known.
func definitionDir(uri string, env func(string) string) string {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "qemu" {
		if uri == "" {
			return systemDefinitions
		}
		return ""
	}
	switch u.Path {
	case "/system":
		return systemDefinitions
	case "/session":
		if dir := env("XDG_CONFIG_HOME"); dir != "" {
			return filepath.Join(dir, "libvirt/qemu")
		}
		if home := env("HOME"); home != "" {
			return filepath.Join(home, ".config/libvirt/qemu")
		}
	case "/embed":
		if root := u.Query().Get("root"); root != "" {
			return filepath.Join(root, "etc/qemu")
		}
	}
	return ""
}

// readDefinitions reads each NAME.xml in dir. One that cannot be read is there all the same,
// without a uuid: a link to nowhere, too.
func readDefinitions(dir string) (driver.Definitions, error) {
	out := driver.Definitions{Folder: dir}
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return out, fmt.Errorf("%s: %w", dir, err)
	}
	out.Identity = fmt.Sprintf("%d:%d", st.Dev, st.Ino)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out, err
	}
	for _, e := range entries {
		name, is := strings.CutSuffix(e.Name(), ".xml")
		if !is || e.IsDir() {
			continue
		}
		out.Files = append(out.Files, driver.DefinitionFile{Name: name, UUID: uuidIn(filepath.Join(dir, e.Name()))})
	}
	return out, nil
}

// uuidIn is the uuid in a definition, in the form that libvirt gives; empty for none.
func uuidIn(path string) string {
	// A pipe that somebody put there may not hold the reader up.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(f, definitionEnough))
	if err != nil {
		return ""
	}
	found := definedUUID.FindSubmatch(text)
	if found == nil {
		return ""
	}
	return strings.ToLower(string(found[1]))
}
