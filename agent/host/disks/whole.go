package disks

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// headers are what images of formats begin with that can name other files, or that nobody
// would take for a disk's contents.
var headers = []struct {
	at     int
	magic  string
	format string
}{
	{0, "QFI\xfb", "qcow2"}, {0, "QED\x00", "qed"}, {0, "KDMV", "vmdk"}, {0, "COWD", "vmdk"}, {0, "# Disk DescriptorFile", "vmdk"},
	{0, "vhdxfile", "vhdx"}, {0, "conectix", "vpc"}, {64, "\x7f\x10\xda\xbe", "vdi"},
}

// looks gives the format whose header a file has. It reads the first bytes alone; none of
// a file that this process may not read.
func looks(real string) (string, error) {
	file, err := os.OpenFile(real, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, os.ErrPermission) {
		return "", nil // root without its rights, on NFS; qemu-img has read it as its owner
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	head := make([]byte, 128)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	head = head[:n]
	for _, h := range headers {
		if len(head) > h.at && bytes.HasPrefix(head[h.at:], []byte(h.magic)) {
			return h.format, nil
		}
	}
	return "", nil
}

// Whole refuses an image from which no disk is to be made: one that needs other files, is
// encrypted, or is not of the format that was said. Its header was written by whoever made
// it, and would have the host read any file into an instance's disk.
func Whole(path, format string, img Image) error {
	refuse := func(code, message, have, change string) error {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{Code: code, Message: "image " + path + " " + message, Have: have, Change: change})
	}
	below := slices.Concat(img.Backing, img.Outside)
	switch {
	case len(below) > 0:
		return refuse("image_not_whole", "names another file that it needs: "+below[0], below[0], "make it whole: qemu-img convert -O "+format)
	case img.Encrypted:
		return refuse("image_encrypted", "is encrypted, and nothing here has its secret", format, "decrypt it: qemu-img convert, with its secret")
	case format == "raw" && img.Looks != "":
		return refuse("image_format", "has the header of "+img.Looks+", and is to be taken for raw", img.Looks,
			"say its format: "+img.Looks+"; or convert it: qemu-img convert -f "+img.Looks+" -O qcow2")
	}
	return nil
}

// alone names an image for qemu-img so that no backing file is opened, whatever its header
// has by now.
func alone(real, format string) (string, error) {
	if format != "qcow2" {
		return real, nil
	}
	fi, err := os.Stat(real)
	if err != nil {
		return "", err
	}
	driver := "file"
	if fi.Mode()&os.ModeDevice != 0 {
		driver = "host_device"
	}
	text, err := json.Marshal(map[string]any{
		"driver": format, "backing": nil, "file": map[string]any{"driver": driver, "filename": real},
	})
	return "json:" + string(text), err
}
