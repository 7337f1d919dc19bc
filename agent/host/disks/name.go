package disks

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Name is a file name as an image's header has it: a backing file or a data file.
type Name struct {
	// Files are the files and devices of this host that it names, absolute. A relative
	// one in json:{…} or behind a protocol is there twice: as QEMU finds it from / and
	// beside the image.
	Files []string
	// Plain: it names exactly one file, Files[0], and nothing else.
	Plain bool
	// Format is that of the one file where the name says so; else empty.
	Format string
	// Known: all that it names is among Files, or reached through the network.
	Known bool
	// Climbs: a .. follows a folder in it. Where that folder is a link, Files are not what it names.
	Climbs bool
	// Header: part of it may have a header of a format, or be another process of this host, and
	// Files do not say so. Of names that are not Plain.
	Header bool
}

// climbs reports whether the parent of a folder is named in a path by way of that folder.
func climbs(path string) bool {
	below := false
	for part := range strings.SplitSeq(path, "/") {
		switch part {
		case "", ".":
		case "..":
			if below {
				return true
			}
		default:
			below = true
		}
	}
	return false
}

// networkProtocols are those of QEMU that reach no file of the host (docs/system/qemu-block-drivers).
var networkProtocols = []string{
	"nbd", "rbd", "iscsi", "http", "https", "ftp", "ftps", "tftp", "ssh", "sftp", "gluster", "nfs", "vxhs", "sheepdog", "null-co", "null-aio",
}

// OfNetwork reports whether a name begins with a protocol that reaches no file of the host.
func OfNetwork(name string) bool {
	protocol, _, found := strings.Cut(name, ":")
	base, _, _ := strings.Cut(protocol, "+") // nbd+unix, gluster+tcp
	return found && slices.Contains(networkProtocols, base)
}

// ParseName reads a name that the header of image has. It reads no file. The rules are
// QEMU's path_has_protocol and bdrv_parse_filename, and those of libvirt, which refuses
// what it does not understand.
func ParseName(image, name string) Name {
	if text, ok := strings.CutPrefix(name, "json:"); ok {
		return parseJSON(image, text)
	}
	protocol, rest, found := strings.Cut(name, ":")
	if !found || strings.Contains(protocol, "/") {
		return Name{Files: []string{beside(image, name)}, Plain: true, Known: true, Climbs: climbs(name)}
	}
	switch protocol {
	case "file", "host_device", "host_cdrom":
		files := anywhere(image, rest)
		return Name{Files: files, Plain: len(files) == 1, Known: true, Climbs: climbs(rest)}
	}
	return Name{Known: OfNetwork(name), Header: strings.HasSuffix(protocol, "+unix") || strings.HasPrefix(rest, "unix:")}
}

func beside(image, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(filepath.Dir(image), name)
}

// anywhere are the files that a name without a folder can be.
func anywhere(image, name string) []string {
	if filepath.IsAbs(name) {
		return []string{filepath.Clean(name)}
	}
	return []string{filepath.Join("/", name), beside(image, name)}
}

// parseJSON reads the options of a block node, nested or with dots in their names.
func parseJSON(image, text string) Name {
	var tree map[string]any
	if err := json.Unmarshal([]byte(text), &tree); err != nil {
		return Name{}
	}
	options := map[string]string{}
	flatten(options, "", tree)
	n := Name{Known: true, Header: options["driver"] == ""} // QEMU looks for a header itself, then
	for key, value := range options {
		n.Header = n.Header || value == "unix"
		switch last := key[strings.LastIndexByte(key, '.')+1:]; last {
		case "filename":
			switch inner := ParseName(image, value); {
			case strings.HasPrefix(value, "json:"), !filepath.IsAbs(value) && OfNetwork(value), !inner.Known:
				n.Files, n.Known = append(n.Files, inner.Files...), n.Known && inner.Known
			default:
				path := strings.TrimPrefix(value, "file:")
				n.Climbs = n.Climbs || climbs(path)
				n.Files = append(n.Files, anywhere(image, path)...)
			}
		case "driver":
			n.Known = n.Known && slices.Contains(knownDrivers, value)
			n.Header = n.Header || value != "raw" && !slices.Contains(fileDrivers, value) && !slices.Contains(networkProtocols, value)
		}
	}
	slices.Sort(n.Files)
	n.Files = slices.Compact(n.Files)
	n.Plain, n.Format = plain(options, n)
	n.Header = n.Header && !n.Plain
	return n
}

// plain reports whether options name one file, below one format at most, and nothing else
// that changes what is read of it; and which format.
func plain(options map[string]string, n Name) (bool, string) {
	if len(n.Files) != 1 || !n.Known {
		return false, ""
	}
	format := ""
	for key, value := range options {
		switch key {
		case "filename", "file.filename":
		case "driver", "file.driver":
			switch {
			case slices.Contains(fileDrivers, value):
			case key == "driver":
				format = value
			default:
				return false, ""
			}
		default:
			return false, ""
		}
	}
	if format == "" && options["driver"] != "" {
		format = "raw" // a file as it is
	}
	return true, format
}

// fileDrivers open a file or a device as it is; knownDrivers need nothing but what their
// options name.
var (
	fileDrivers  = []string{"file", "host_device", "host_cdrom"}
	knownDrivers = slices.Concat(fileDrivers, networkProtocols, []string{
		"raw", "qcow2", "qcow", "qed", "vmdk", "vdi", "vhdx", "vpc", "parallels", "luks", "dmg", "bochs", "cloop", "copy-on-read", "throttle",
	})
)

func flatten(into map[string]string, prefix string, tree map[string]any) {
	for key, value := range tree {
		switch v := value.(type) {
		case map[string]any:
			flatten(into, prefix+key+".", v)
		case []any:
			for i, one := range v {
				if child, ok := one.(map[string]any); ok {
					flatten(into, prefix+key+"."+strconv.Itoa(i)+".", child)
				}
			}
			into[prefix+key] = ""
		case string:
			into[prefix+key] = v
		default:
			into[prefix+key] = ""
		}
	}
}
