package disks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/fault"
	"berth/internal/stuck"
	"berth/systemd"
)

// Files reaches the files of one host. The zero value is this machine's, with
// qemu-img from $PATH and no identity for local filesystems.
type Files struct {
	// Root is where this process sees the hypervisor's /; empty when it is the
	// same. Paths given and answered are always the hypervisor's.
	Root string
	// Tool is qemu-img; empty for the one in $PATH.
	Tool string
	// Manager runs qemu-img as a transient unit (see tool.go); nil: a child of this process.
	Manager *systemd.Units
	// BootID names the boot of the kernel below (Runtime.Boot().ID); without it
	// a file on a local filesystem has no identity.
	BootID string

	calls *stuck.Calls // see Bounded; nil: a call waits as long as the kernel does
}

// Real is where this process finds the hypervisor's path.
func (f Files) Real(path string) string { return filepath.Join("/", f.Root, path) }

// Image is what is known of a disk image and the files below it.
type Image struct {
	Format      string
	VirtualSize int64 // bytes, what the guest sees
	// ActualSize is what the whole chain occupies, bytes: a copy without backing
	// files can need as much, though never more than VirtualSize and metadata.
	ActualSize int64
	// Backing lists the files below, the nearest first. A layer that is no local
	// file ends the list, and is its last element as the image spells it.
	Backing []string
	// Outside are files that the image needs besides those below it: where a qcow2 image
	// of the chain keeps its data apart from its tables, and all files of a layer that is
	// named as json:{…} with more than one.
	Outside []string
	// Looks is the format whose header a raw image begins with; empty for none that is
	// known. Whoever opens it without being told a format takes it for that.
	Looks string
	// Inside are what a qcow2 image at path keeps beside its data, which no copy of the data has:
	// "bitmap NAME" of a persistent one, "snapshot NAME" of an internal one.
	Inside []string
	// Encrypted: without a secret nothing of the image can be read.
	Encrypted bool
}

// Image reads the image at path, whose format the guest's definition gives; an
// empty one is raw, as libvirt takes it. It may be in use. fault.NotFound when
// there is no such file.
func (f Files) Image(ctx context.Context, path, format string) (Image, error) {
	if format == "" {
		format = "raw"
	}
	img := Image{Format: format}
	for top := path; ; {
		one, err := f.info(ctx, path, format)
		if err != nil {
			return Image{}, err
		}
		if path == top {
			img.VirtualSize, img.Encrypted = one.VirtualSize, one.Encrypted || format == "luks"
			for _, b := range one.Specific.Data.Bitmaps {
				img.Inside = append(img.Inside, "bitmap "+b.Name)
			}
			for _, s := range one.Snapshots {
				img.Inside = append(img.Inside, "snapshot "+s.Name)
			}
			if format == "raw" {
				if img.Looks, err = looks(f.Real(path)); err != nil {
					return Image{}, fault.New(fault.Internal, "read image %s: %w", path, err)
				}
			}
		}
		if apart := one.Specific.Data.File; apart != "" {
			data := ParseName(path, apart)
			img.Outside = append(img.Outside, data.Files...)
			if len(data.Files) == 0 {
				img.Outside = append(img.Outside, apart)
			}
		}
		for _, extent := range one.Specific.Data.Extents {
			if part := ParseName(path, extent.File); !slices.Equal(part.Files, []string{f.Real(path)}) {
				img.Outside = append(img.Outside, part.Files...)
			}
		}
		img.ActualSize += one.ActualSize
		if one.Backing == "" {
			return img, nil
		}
		name := ParseName(path, one.Backing)
		if !name.Plain {
			img.Backing, img.Outside = append(img.Backing, one.Backing), append(img.Outside, name.Files...)
			return img, nil
		}
		next := name.Files[0]
		if next == top || slices.Contains(img.Backing, next) {
			return Image{}, fault.New(fault.Invalid, "read image %s: its chain of backing files leads back to %s", top, next)
		}
		img.Backing = append(img.Backing, next)
		path, format = next, cmp.Or(name.Format, one.BackingFormat)
		if format == "" {
			format = "raw" // libvirt does not probe either
		}
	}
}

// Layer is what the header of one image names. Names are as it spells them.
type Layer struct {
	Below  string // its backing file; empty for none
	Format string // that one's format; empty where the header does not say it
	// Data are the files of its data that are not the image itself.
	Data []string
	// Looks is Image.Looks.
	Looks string
}

// Layer reads the header of the image at path, of that format, and opens none of the files
// below it. It may be in use. fault.NotFound when there is no such file.
func (f Files) Layer(ctx context.Context, path, format string) (Layer, error) {
	one, err := f.info(ctx, path, format)
	if err != nil {
		return Layer{}, err
	}
	out := Layer{Below: one.Backing, Format: one.BackingFormat}
	if apart := one.Specific.Data.File; apart != "" {
		out.Data = append(out.Data, apart)
	}
	for _, extent := range one.Specific.Data.Extents {
		if part := ParseName(path, extent.File); !slices.Equal(part.Files, []string{f.Real(path)}) {
			out.Data = append(out.Data, extent.File)
		}
	}
	if format == "raw" {
		if out.Looks, err = looks(f.Real(path)); err != nil {
			return Layer{}, fault.New(fault.Internal, "read image %s: %w", path, err)
		}
	}
	return out, nil
}

// ErrOtherFormat is of a file that has not the header of the format as which it was read.
var ErrOtherFormat = errors.New("another format")

type info struct {
	VirtualSize   int64  `json:"virtual-size"`
	ActualSize    int64  `json:"actual-size"`
	Encrypted     bool   `json:"encrypted"`
	Backing       string `json:"backing-filename"`
	BackingFormat string `json:"backing-filename-format"`
	Snapshots     []struct {
		Name string `json:"name"`
	} `json:"snapshots"`
	Specific struct {
		Data struct {
			Bitmaps []struct {
				Name string `json:"name"`
			} `json:"bitmaps"`
			File    string `json:"data-file"`
			Extents []struct {
				File string `json:"filename"`
			} `json:"extents"` // of vmdk
		} `json:"data"`
	} `json:"format-specific"`
}

func (f Files) info(ctx context.Context, path, format string) (info, error) {
	real := f.Real(path)
	if err := f.calls.Answers(real); err != nil { // also of each layer below another
		return info{}, fault.Wrap(err, "read image %s", path)
	}
	switch fi, err := os.Stat(real); {
	case errors.Is(err, fs.ErrNotExist):
		return info{}, fault.New(fault.NotFound, "read image %s: no such file", path)
	case err == nil && !fi.Mode().IsRegular() && fi.Mode()&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice:
		// Opening a pipe waits for its other end; opening a device can do anything.
		return info{}, fault.New(fault.Invalid, "read image %s: neither a file nor a block device", path)
	}
	// -U: the guest has it open for writing; what is read here does not change
	// while it runs.
	as, err := readerOf(real)
	if err != nil {
		return info{}, fault.New(fault.Internal, "read image %s: %w", path, err)
	}
	out, err := f.runAs(ctx, as, "info", "--output=json", "-U", "-f", format, real)
	if err != nil && strings.Contains(err.Error(), "not in "+format+" format") {
		err = fault.New(fault.Invalid, "%w: %s", ErrOtherFormat, err.Error()) // fault.New keeps one cause
	}
	if err != nil {
		return info{}, fault.New(fault.KindOf(err), "read image %s as %s: %w", path, format, err)
	}
	var i info
	if err := json.Unmarshal(out, &i); err != nil {
		return info{}, fault.New(fault.Internal, "read image %s: answer of qemu-img: %w", path, err)
	}
	return i, nil
}

// create fills an existing empty file with an empty image.
func (f Files) create(ctx context.Context, real, format string, size int64) error {
	_, err := f.run(ctx, "create", "-q", "-f", format, real, strconv.FormatInt(size, 10))
	return err
}
