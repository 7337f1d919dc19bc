package flavor

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"berth/topology"
)

// maxPageKiB is a size above which no architecture has pages (its largest is
// 16 GiB, on POWER).
const maxPageKiB = 1 << 40

// pages reads hw:mem_page_size and the image's word for it. Asked tells whether
// the guest gets a topology for it: a size of a fraction of a KiB, which Nova
// cuts to none, asks as well.
func (r *reader) pages() (size topology.PageRequest, asked bool) {
	const key, imageKey, nova = "hw:mem_page_size", "hw_mem_page_size", "MemoryPageSizeForbidden"
	flavor, image := r.specs[key], r.image[imageKey]
	switch {
	case flavor == "" && image == "":
		return topology.PagesDefault, false
	case flavor == "":
		r.fault(imageKey, "page_size_forbidden", nova, "the image asks for %s; only a flavor with %s large or any lets it", quote(image), key)
		return topology.PagesDefault, false
	}
	size, asked, ok := pageRequest(flavor)
	if !ok {
		r.badPages(key, flavor)
		return topology.PagesDefault, false
	}
	switch {
	case image == "":
		return size, asked
	case size != topology.PagesAny && size != topology.PagesLarge:
		r.fault(imageKey, "page_size_forbidden", nova, "the image asks for %s, the flavor's %s is %s; only large or any let it", quote(image), key, quote(flavor))
		return topology.PagesDefault, false
	}
	if size, asked, ok = pageRequest(image); !ok {
		r.badPages(imageKey, image)
	}
	return size, asked
}

func (r *reader) badPages(key, text string) {
	r.fault(key, "page_size_invalid", "MemoryPageSizeInvalid", "%s: want small, large, any, a number of KiB, or a size like 2MB, 1GiB", quote(text))
}

// byteSize is oslo.utils string_to_bytes with its IEC units: powers of 1024
// with and without the i, b and bit for eighths.
var byteSize = regexp.MustCompile(`^([-+]?[0-9]*\.?[0-9]+)(?:([KMGT])i?)?(b|bit|B)$`)

// pageRequest reads a page size. Without a unit it counts KiB.
func pageRequest(text string) (size topology.PageRequest, asked, ok bool) {
	switch text {
	case "any":
		return topology.PagesAny, true, true
	case "large":
		return topology.PagesLarge, true, true
	case "small":
		return topology.PagesSmall, true, true
	}
	if text != "" && strings.Trim(text, "0123456789") == "" {
		kib, _ := integer(text)
		if kib > maxPageKiB {
			return 0, false, false
		}
		return topology.PageRequest(kib * 1024), kib != 0, true
	}
	m := byteSize.FindStringSubmatch(text)
	if m == nil {
		return 0, false, false
	}
	bytes, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, false, false
	}
	if m[3] != "B" {
		bytes /= 8
	}
	if m[2] != "" {
		bytes = math.Ldexp(bytes, 10*(1+strings.Index("KMGT", m[2])))
	}
	bytes = math.Ceil(bytes)
	// Nova's function takes sizes below zero, of which some even mean its words;
	// its API lets no such flavor be made.
	if bytes < 0 || bytes > maxPageKiB*1024 {
		return 0, false, false
	}
	return topology.PageRequest(int64(bytes) / 1024 * 1024), bytes > 0, true
}

// LockedMemory reports whether the guest's memory is to be locked
// (hw:locked_memory, hw_locked_memory). The error is an Errors.
func LockedMemory(f topology.Flavor, image Image) (bool, error) {
	r := newReader(f, image)
	locked := r.lockedMemory()
	return locked && len(r.errs) == 0, r.errs.orNil()
}

func (r *reader) lockedMemory() bool {
	const key, imageKey = "hw:locked_memory", "hw_locked_memory"
	flavorText, inFlavor := r.specs[key]
	imageText, inImage := r.image[imageKey]
	flavor, _ := boolean(flavorText)
	image, _ := boolean(imageText)
	locked, at := flavor, key
	if inFlavor && inImage && flavor != image {
		r.fault(imageKey, "locked_memory_conflict", "FlavorImageLockedMemoryConflict", "%t in the image, %t in the flavor's %s", image, flavor, key)
	}
	if !inFlavor {
		locked, at = image, imageKey
	}
	if locked && r.specs["hw:mem_page_size"] == "" && r.image["hw_mem_page_size"] == "" {
		r.fault(at, "locked_memory_without_page_size", "LockMemoryForbidden", "wants hw:mem_page_size set")
	}
	return locked
}
