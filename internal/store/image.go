package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"
)

// bbolt trusts its file: it maps it, follows page numbers wherever they lead,
// and a cut or garbled file ends in a fault, a loop, or fewer records with no
// error. So the file is read here first, as bytes, by bbolt's own format
// (go.etcd.io/bbolt internal/common: meta.go, page.go, inode.go, bucket.go;
// file format version 2), trusting nothing.

const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2

	pageHeader   = 16 // id uint64, flags uint16, count uint16, overflow uint32
	metaLength   = 64 // magic, version, page size, flags uint32; root, sequence, freelist, high water, txid, checksum uint64
	bucketHeader = 16 // root uint64, sequence uint64
	elementSize  = 16 // of branch (pos, ksize uint32; page uint64) and leaf (flags, pos, ksize, vsize uint32)

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10

	leafBucket   = 0x01 // element flag: the value is a bucket
	noFreelist   = math.MaxUint64
	deepestTree  = 32 // at two keys a page, far more than any file has
	metaPages    = 2
	smallestPage = 1 << 10
	largestPage  = 1 << 16
)

var order = binary.NativeEndian // bbolt writes its structs as they lie in memory

// image is a database file as bytes.
type image struct {
	data      []byte
	pageSize  uint64
	highWater uint64 // pages at and above it are not in use
	root      uint64
	freelist  uint64
	reached   []bool // by page number: part of the tree, or of the freelist itself

	warnings []string
	visit    func(bucket, key, value []byte) error // called for every record in order of bucket and key
}

// meta is one of the two pages that say where everything is.
type meta struct {
	pageSize, root, freelist, highWater, txid uint64
}

// readImage loads the file and finds its last commit.
func readImage(r io.ReaderAt, size int64) (*image, error) {
	if size == 0 {
		return nil, fmt.Errorf("the file is empty: it was cut")
	}
	head := make([]byte, min(size, metaPages*largestPage))
	if _, err := r.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("read its first pages: %w", err)
	}
	m, warnings, err := findMeta(head)
	if err != nil {
		return nil, err
	}
	if m.highWater < metaPages || m.highWater > math.MaxInt64/m.pageSize {
		return nil, fmt.Errorf("its meta page counts %d pages", m.highWater)
	}
	if need := m.highWater * m.pageSize; uint64(size) < need {
		return nil, fmt.Errorf("it has %d bytes of at least %d: it was cut", size, need)
	}
	im := &image{
		data:     make([]byte, m.highWater*m.pageSize),
		pageSize: m.pageSize, highWater: m.highWater, root: m.root, freelist: m.freelist,
		reached: make([]bool, m.highWater), warnings: warnings,
	}
	if _, err := r.ReadAt(im.data, 0); err != nil {
		return nil, fmt.Errorf("read %d pages: %w", m.highWater, err)
	}
	return im, nil
}

// findMeta takes the newer of the two meta pages that is whole, as bbolt does.
// One of them may be torn by a crash in the middle of a commit that nobody was
// told of; it may also be damaged, and then the last commit is lost. The two
// cannot be told apart, so it is a warning.
func findMeta(head []byte) (meta, []string, error) {
	first, err0 := parseMeta(head, 0)
	if err0 == nil {
		second, err1 := parseMeta(head, first.pageSize)
		switch {
		case err1 != nil:
			return first, []string{fmt.Sprintf("meta page 1: %v; the commit before it stands", err1)}, nil
		case second.pageSize != first.pageSize:
			return meta{}, nil, fmt.Errorf("its meta pages disagree on the page size: %d and %d", first.pageSize, second.pageSize)
		case second.txid > first.txid:
			return second, nil, nil
		}
		return first, nil, nil
	}
	// Without the first, the page size must be guessed to find the second.
	for size := uint64(smallestPage); size <= largestPage; size *= 2 {
		if second, err := parseMeta(head, size); err == nil && second.pageSize == size {
			return second, []string{fmt.Sprintf("meta page 0: %v; the commit before it stands", err0)}, nil
		}
	}
	return meta{}, nil, fmt.Errorf("it is not a database, or its meta pages are damaged: %w", err0)
}

func parseMeta(head []byte, at uint64) (meta, error) {
	if uint64(len(head)) < at+pageHeader+metaLength {
		return meta{}, fmt.Errorf("%d bytes are too few", len(head))
	}
	b := head[at+pageHeader:][:metaLength]
	if magic := order.Uint32(b); magic != boltMagic {
		return meta{}, fmt.Errorf("magic number %#x, want %#x", magic, boltMagic)
	}
	if version := order.Uint32(b[4:]); version != boltVersion {
		return meta{}, fmt.Errorf("format version %d, want %d", version, boltVersion)
	}
	sum := fnv.New64a()
	sum.Write(b[:metaLength-8])
	if sum.Sum64() != order.Uint64(b[metaLength-8:]) {
		return meta{}, fmt.Errorf("checksum is wrong")
	}
	m := meta{
		pageSize:  uint64(order.Uint32(b[8:])),
		root:      order.Uint64(b[16:]),
		freelist:  order.Uint64(b[32:]),
		highWater: order.Uint64(b[40:]),
		txid:      order.Uint64(b[48:]),
	}
	if m.pageSize < smallestPage || m.pageSize > largestPage || m.pageSize&(m.pageSize-1) != 0 {
		return meta{}, fmt.Errorf("page size %d", m.pageSize)
	}
	return m, nil
}

// walk visits every record and holds the tree and the freelist against each
// other: every page below the high water mark is in exactly one of them.
func (im *image) walk(visit func(bucket, key, value []byte) error) error {
	im.visit = visit
	if im.freelist == noFreelist {
		return fmt.Errorf("it has no freelist: not written by Berth")
	}
	freelist, err := im.page(im.freelist, flagFreelist)
	if err != nil {
		return fmt.Errorf("freelist: %w", err)
	}
	if err := im.walkTree(im.root, nil); err != nil {
		return err
	}
	return im.checkFreelist(freelist)
}

// page gives the bytes of a page and its overflow, and marks them reached.
func (im *image) page(id uint64, flag uint16) ([]byte, error) {
	if id < metaPages || id >= im.highWater {
		return nil, fmt.Errorf("page %d is not in 2..%d", id, im.highWater-1)
	}
	p := im.data[id*im.pageSize:]
	flags, overflow := order.Uint16(p[8:]), uint64(order.Uint32(p[12:]))
	if got := order.Uint64(p); got != id {
		return nil, fmt.Errorf("page %d says it is page %d", id, got)
	}
	if flags != flag && (flag != 0 || flags != flagBranch && flags != flagLeaf) {
		return nil, fmt.Errorf("page %d has flags %#x", id, flags)
	}
	if id+overflow >= im.highWater {
		return nil, fmt.Errorf("page %d overflows by %d pages over the last, %d", id, overflow, im.highWater-1)
	}
	for n := id; n <= id+overflow; n++ {
		if im.reached[n] {
			return nil, fmt.Errorf("page %d is in use twice", n)
		}
		im.reached[n] = true
	}
	return p[:(overflow+1)*im.pageSize], nil
}

// cursor is how far the walk of one tree has come.
type cursor struct {
	last  []byte // the last key seen
	floor []byte // the key of the branch that led here: below it a search would find nothing
}

// next takes the next key in order.
func (c *cursor) next(key []byte) error {
	if c.last != nil && bytes.Compare(key, c.last) <= 0 {
		return fmt.Errorf("keys are out of order")
	}
	if bytes.Compare(key, c.floor) < 0 {
		return fmt.Errorf("a key is below the branch that leads to it")
	}
	c.last = key
	return nil
}

// walkTree visits the tree of one bucket; bucket is nil for the root, whose
// records are the buckets.
func (im *image) walkTree(id uint64, bucket []byte) error {
	return im.walkPage(id, bucket, &cursor{}, 0)
}

func (im *image) walkPage(id uint64, bucket []byte, c *cursor, depth int) error {
	if depth > deepestTree {
		return fmt.Errorf("page %d: the tree is deeper than %d", id, deepestTree)
	}
	p, err := im.page(id, 0)
	if err != nil {
		return err
	}
	if order.Uint16(p[8:]) == flagLeaf {
		if err := im.walkLeaf(p, bucket, c); err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		return nil
	}
	for i := range int(order.Uint16(p[10:])) {
		at := pageHeader + i*elementSize
		if at+elementSize > len(p) {
			return fmt.Errorf("page %d: element %d is beyond its end", id, i)
		}
		pos, ksize := uint64(order.Uint32(p[at:])), uint64(order.Uint32(p[at+4:]))
		key, ok := slice(p, uint64(at)+pos, ksize)
		if !ok {
			return fmt.Errorf("page %d: key of element %d is beyond its end", id, i)
		}
		if c.last != nil && bytes.Compare(key, c.last) <= 0 {
			return fmt.Errorf("page %d: branches are out of order at element %d", id, i)
		}
		before := c.last
		c.floor = key
		child := order.Uint64(p[at+8:])
		if err := im.walkPage(child, bucket, c, depth+1); err != nil {
			return err
		}
		if bytes.Equal(before, c.last) {
			return fmt.Errorf("page %d: a branch without records", child)
		}
	}
	return nil
}

func (im *image) walkLeaf(p, bucket []byte, c *cursor) error {
	for i := range int(order.Uint16(p[10:])) {
		at := pageHeader + i*elementSize
		if at+elementSize > len(p) {
			return fmt.Errorf("element %d is beyond its end", i)
		}
		flags, pos := order.Uint32(p[at:]), uint64(order.Uint32(p[at+4:]))
		ksize, vsize := uint64(order.Uint32(p[at+8:])), uint64(order.Uint32(p[at+12:]))
		kv, ok := slice(p, uint64(at)+pos, ksize+vsize)
		if !ok || ksize == 0 {
			return fmt.Errorf("record %d is beyond its end", i)
		}
		key, value := kv[:ksize], kv[ksize:]
		if err := c.next(key); err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
		switch isBucket := flags == leafBucket; {
		case flags > leafBucket:
			return fmt.Errorf("record %d has flags %#x", i, flags)
		case isBucket != (bucket == nil):
			return fmt.Errorf("record %d: a bucket in a bucket, or a record in none: not written by Berth", i)
		case isBucket:
			if err := im.walkBucket(key, value); err != nil {
				return fmt.Errorf("bucket %q: %w", key, err)
			}
		default:
			if err := im.visit(bucket, key, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// walkBucket visits a bucket: a tree of its own, or, when small, a leaf page
// inside the value.
func (im *image) walkBucket(name, value []byte) error {
	if len(value) < bucketHeader {
		return fmt.Errorf("header of %d bytes", len(value))
	}
	if root := order.Uint64(value); root != 0 {
		return im.walkTree(root, name)
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || order.Uint16(inline[8:]) != flagLeaf {
		return fmt.Errorf("its page is damaged")
	}
	return im.walkLeaf(inline, name, &cursor{})
}

// checkFreelist refuses a page that is both free and in use (the next commit
// would write over it), and one that is neither (something lost its way to it).
func (im *image) checkFreelist(p []byte) error {
	list, err := im.freePages(p)
	if err != nil {
		return err
	}
	free := make([]bool, im.highWater)
	for ; len(list) > 0; list = list[8:] {
		id := order.Uint64(list)
		switch {
		case id < metaPages || id >= im.highWater:
			return fmt.Errorf("freelist: page %d is not in 2..%d", id, im.highWater-1)
		case im.reached[id]:
			return fmt.Errorf("freelist: page %d is in use", id)
		case free[id]:
			return fmt.Errorf("freelist: page %d stands twice", id)
		}
		free[id] = true
	}
	for id := uint64(metaPages); id < im.highWater; id++ {
		if !free[id] && !im.reached[id] {
			return fmt.Errorf("page %d is neither free nor in use", id)
		}
	}
	return nil
}

// freePages gives the numbers that a freelist holds, eight bytes each.
func (im *image) freePages(p []byte) ([]byte, error) {
	count, at := uint64(order.Uint16(p[10:])), uint64(pageHeader)
	if count == math.MaxUint16 { // then the true count stands before the list
		count, at = order.Uint64(p[at:]), at+8
	}
	list, ok := slice(p, at, count*8)
	if !ok || count > im.highWater {
		return nil, fmt.Errorf("freelist: %d entries are beyond its end", count)
	}
	return list, nil
}

// slice is p[at:at+length], if it is all there.
func slice(p []byte, at, length uint64) ([]byte, bool) {
	if at > uint64(len(p)) || length > uint64(len(p))-at {
		return nil, false
	}
	return p[at : at+length], true
}
