package guest

import (
	"bytes"
	"fmt"
)

// file is one entry of the initrd; without content it is a directory.
type file struct {
	name    string
	content []byte
}

// cpio writes the "newc" archive that the kernel unpacks (Documentation/
// driver-api/early-userspace/buffer-format.rst): a header of 13 numbers in eight
// hexadecimal digits after the magic, name and content each padded to four
// bytes, and an entry TRAILER!!! at the end. Times are zero, so the same files
// make the same archive.
func cpio(files []file) []byte {
	var b bytes.Buffer
	entry := func(ino int, name string, mode, major, minor int, content []byte) {
		fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
			ino, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0)
		b.WriteString(name + "\x00")
		pad(&b)
		b.Write(content)
		pad(&b)
	}
	for i, f := range files {
		mode := 0o100755
		if f.content == nil {
			mode = 0o040755
		}
		entry(i+1, f.name, mode, 0, 0, f.content)
	}
	// Without a console node the kernel gives init no standard output.
	entry(len(files)+1, "dev/console", 0o020600, 5, 1, nil)
	entry(0, "TRAILER!!!", 0, 0, 0, nil)
	return b.Bytes()
}

func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}
