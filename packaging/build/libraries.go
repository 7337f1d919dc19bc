package main

import (
	"debug/elf"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// library is a library that a binary may be linked with: what its files begin with, what
// the versions of its symbols begin with, and the package that has it.
type library struct{ file, symbols, deb, rpm string }

var known = []library{
	{"libc.so.6", "GLIBC_", "libc6", "glibc"},
	{"libvirt", "LIBVIRT_", "libvirt0", "libvirt-libs"}, // and libvirt-qemu, -lxc, -admin
}

// libraries gives the packages that a binary needs for its libraries, of the version that
// has all symbols that it uses; none for a static one.
func libraries(binary, packer string) ([]string, error) {
	f, err := elf.Open(binary)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files, err := f.ImportedLibraries()
	if err != nil || len(files) == 0 {
		return nil, err
	}
	newest := map[library]string{}
	for _, file := range files {
		if strings.HasPrefix(file, "ld-linux") {
			continue // libc's
		}
		i := slices.IndexFunc(known, func(l library) bool { return strings.HasPrefix(file, l.file) })
		if i < 0 {
			return nil, fmt.Errorf("%s is linked with %s, and of that no package is known", binary, file)
		}
		newest[known[i]] = "0"
	}
	symbols, err := f.ImportedSymbols()
	if err != nil {
		return nil, err
	}
	for l := range newest {
		for _, s := range symbols {
			// LIBVIRT_9.0.0, LIBVIRT_QEMU_8.2.0.
			version := s.Version[strings.LastIndex(s.Version, "_")+1:]
			if strings.HasPrefix(s.Version, l.symbols) && older(newest[l], version) {
				newest[l] = version
			}
		}
	}
	var out []string
	for l, version := range newest {
		if packer == "deb" {
			out = append(out, fmt.Sprintf("%s (>= %s)", l.deb, version))
		} else {
			out = append(out, fmt.Sprintf("%s >= %s", l.rpm, version))
		}
	}
	slices.Sort(out)
	return out, nil
}

// older says whether a version of numbers with points between them is below another.
func older(a, b string) bool {
	numbers := func(version string) (out []int) {
		for part := range strings.SplitSeq(version, ".") {
			n, _ := strconv.Atoi(part) // GLIBC_PRIVATE is below every version
			out = append(out, n)
		}
		return out
	}
	return slices.Compare(numbers(a), numbers(b)) < 0
}
