package store

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
)

// Record is one record that a damaged file still has.
type Record struct {
	Bucket, Key string
	Value       []byte
}

// Salvaged is what is left of a file that is not whole.
//
// Every record in it has the right seal and was reached from the last commit that
// can be found, so it is what that commit said. What is missing is not known: a
// record that is not there may be one that was lost. So it is joined with what
// others know, never believed to be all.
type Salvaged struct {
	Records []Record // in order of bucket and key

	// Lost is how many records the file says it should have beside these; -1 where
	// it does not say.
	Lost int
	// Garbled are the records whose bytes are there and whose seal is wrong, as
	// bucket/key.
	Garbled []string
	// Behind says that the last commit may be missing: one of the two meta pages is
	// damaged, and what is here may be of the commit before.
	Behind bool
	// Faults are what is wrong with the file, in a person's words; at most a few.
	Faults []string
}

// Complete says that nothing is missing: every record of the last commit is here,
// and only what bbolt keeps for itself is damaged.
func (s Salvaged) Complete() bool { return s.Lost == 0 && !s.Behind }

// mostFaults bounds the list for people; a garbled page can have thousands.
const mostFaults = 8

// Salvage reads what is left of the file at path, and changes nothing. A file of
// another program or of a newer schema gives no records. The error is of the
// reading alone: a file in which nothing is left is no error.
func Salvage(path string) (Salvaged, error) {
	f, err := os.Open(path)
	if err != nil {
		return Salvaged{Lost: -1}, explain(path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return Salvaged{Lost: -1}, explain(path, err)
	}
	return salvage(data, current), nil
}

// salvage walks the tree of the last commit that has a root, past whatever is
// damaged.
func salvage(data []byte, s schema) Salvaged {
	metas, behind, faults := metasOf(data)
	best := Salvaged{Lost: -1, Behind: behind, Faults: faults}
	for i, m := range metas {
		w := &salvager{
			image: image{data: data, pageSize: m.pageSize, highWater: min(m.highWater, uint64(len(data))/m.pageSize)},
			out:   Salvaged{Lost: -1, Behind: behind || i > 0, Faults: slices.Clone(faults)},
			about: map[string]string{},
		}
		w.reached = make([]bool, w.highWater)
		if w.highWater < m.highWater {
			w.fault(fmt.Errorf("it was cut: it has %d of %d pages", w.highWater, m.highWater))
		}
		w.leaveFree(m.freelist)
		w.tree(m.root, nil, 0)
		if w.judge(s) {
			return w.out
		}
		if i == 0 {
			best = w.out
		}
	}
	return best
}

// metasOf gives the whole meta pages of a file, the newer first. behind says that
// a newer one may have been lost.
func metasOf(data []byte) (metas []meta, behind bool, faults []string) {
	head := data[:min(len(data), metaPages*largestPage)]
	first, err0 := parseMeta(head, 0)
	var second meta
	err1 := fmt.Errorf("it was not found")
	if err0 == nil {
		second, err1 = parseMeta(head, first.pageSize)
	} else {
		for size := uint64(smallestPage); size <= largestPage; size *= 2 {
			if m, err := parseMeta(head, size); err == nil && m.pageSize == size {
				second, err1 = m, nil
				break
			}
		}
	}
	if err0 == nil {
		metas = append(metas, first)
	} else {
		faults = append(faults, fmt.Sprintf("meta page 0: %v", err0))
	}
	if err1 == nil {
		metas = append(metas, second)
	} else {
		faults = append(faults, fmt.Sprintf("meta page 1: %v", err1))
	}
	slices.SortStableFunc(metas, func(a, b meta) int {
		switch {
		case a.txid > b.txid:
			return -1
		case a.txid < b.txid:
			return 1
		}
		return 0
	})
	return metas, len(metas) < 2, faults
}

// salvager walks a tree as image.walk does, and goes on where that gives up.
type salvager struct {
	image
	out   Salvaged
	about map[string]string // the meta bucket
	seen  census
}

func (w *salvager) fault(err error) {
	if len(w.out.Faults) < mostFaults {
		w.out.Faults = append(w.out.Faults, err.Error())
	}
}

// leaveFree keeps the walk from pages that the commit has given up: a garbled page number
// would lead to one, and to records of an earlier commit whose seals are right. Best effort:
// the freelist may be what is damaged.
func (w *salvager) leaveFree(id uint64) {
	p, err := w.page(id, flagFreelist)
	if err != nil {
		w.fault(fmt.Errorf("freelist: %w", err))
		return
	}
	list, err := w.freePages(p)
	if err != nil {
		w.fault(err)
		return
	}
	for ; len(list) >= 8; list = list[8:] {
		if id := order.Uint64(list); id < w.highWater {
			w.reached[id] = true
		}
	}
}

// judge completes what was read; false where there is nothing in it, so that the
// commit before is worth a look.
func (w *salvager) judge(s schema) bool {
	slices.SortFunc(w.out.Records, func(a, b Record) int {
		if a.Bucket != b.Bucket {
			return bytes.Compare([]byte(a.Bucket), []byte(b.Bucket))
		}
		return bytes.Compare([]byte(a.Key), []byte(b.Key))
	})
	id, err := parseIdentity(func(key string) string { return w.about[key] })
	switch {
	case id.application != "" && id.application != application, err == nil && id.version > s.version:
		w.out.Records, w.out.Garbled = nil, nil
		w.fault(fmt.Errorf("it is of application %q, schema %d", id.application, id.version))
		return true
	case err != nil:
		w.fault(err) // seals tell that the records are Berth's all the same
	default:
		// A flipped bit in the count itself makes these differ too: then it is not known.
		w.out.Lost = -1
		if missing := int64(id.census.records) - int64(w.seen.records); missing > 0 {
			w.out.Lost = int(min(missing, 1<<31-1))
		} else if id.census == w.seen {
			w.out.Lost = 0
		}
	}
	return len(w.out.Records) > 0 || w.out.Lost == 0
}

func (w *salvager) tree(id uint64, bucket []byte, depth int) {
	if depth > deepestTree {
		w.fault(fmt.Errorf("page %d: the tree is deeper than %d", id, deepestTree))
		return
	}
	p, err := w.page(id, 0)
	if err != nil {
		w.fault(err)
		return
	}
	if order.Uint16(p[8:]) == flagLeaf {
		w.leaf(p, bucket)
		return
	}
	for i := range int(order.Uint16(p[10:])) {
		at := pageHeader + i*elementSize
		if at+elementSize > len(p) {
			w.fault(fmt.Errorf("page %d: element %d is beyond its end", id, i))
			return
		}
		w.tree(order.Uint64(p[at+8:]), bucket, depth+1)
	}
}

func (w *salvager) leaf(p, bucket []byte) {
	for i := range int(order.Uint16(p[10:])) {
		at := pageHeader + i*elementSize
		if at+elementSize > len(p) {
			w.fault(fmt.Errorf("element %d of a page of bucket %q is beyond its end", i, bucket))
			return
		}
		flags, pos := order.Uint32(p[at:]), uint64(order.Uint32(p[at+4:]))
		ksize, vsize := uint64(order.Uint32(p[at+8:])), uint64(order.Uint32(p[at+12:]))
		kv, ok := slice(p, uint64(at)+pos, ksize+vsize)
		if !ok || ksize == 0 {
			w.fault(fmt.Errorf("record %d of a page of bucket %q is beyond its end", i, bucket))
			continue
		}
		key, value := kv[:ksize], kv[ksize:]
		switch {
		case bucket == nil && flags == leafBucket:
			w.bucket(key, value)
		case bucket == nil || flags != 0:
			w.fault(fmt.Errorf("record %d of bucket %q has flags %#x", i, bucket, flags))
		case string(bucket) == bucketMeta:
			w.about[string(key)] = string(value)
		default:
			w.record(string(bucket), string(key), value)
		}
	}
}

func (w *salvager) bucket(name, value []byte) {
	if len(value) < bucketHeader {
		w.fault(fmt.Errorf("bucket %q: header of %d bytes", name, len(value)))
		return
	}
	if root := order.Uint64(value); root != 0 {
		w.tree(root, name, 0)
		return
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || order.Uint16(inline[8:]) != flagLeaf {
		w.fault(fmt.Errorf("bucket %q: its page is damaged", name))
		return
	}
	w.leaf(inline, name)
}

func (w *salvager) record(bucket, key string, stored []byte) {
	value, seal, ok := unsealed(stored)
	if !ok || seal != sealOf(bucket, key, value) || Put(bucket, key, value).validate() != nil {
		if len(w.out.Garbled) < mostFaults {
			w.out.Garbled = append(w.out.Garbled, fmt.Sprintf("%q", bucket+"/"+key))
		}
		w.fault(fmt.Errorf("record %q of bucket %q is garbled", key, bucket))
		return
	}
	w.seen.add(seal)
	w.out.Records = append(w.out.Records, Record{bucket, key, bytes.Clone(value)})
}
