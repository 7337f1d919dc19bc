package disks

import (
	"context"
	"time"

	"berth/internal/fault"
	"berth/internal/stuck"
)

// Bounded are files some of which may lie on file systems that do not answer. What looks gives
// fault.Unavailable after stuck.Calls.Limit, with the mount, and is refused at once from then
// on, until the file system answers. What makes, writes or removes asks first whether it
// answers, and then waits as long as it takes: a caller who went away while the kernel still
// had the call could undo what is then done after it.
type Bounded struct{ f Files }

// Bounded gives these files with their calls limited.
func (f Files) Bounded(calls *stuck.Calls) Bounded {
	f.calls = calls
	return Bounded{f}
}

// readBlock is how long one block may take to be read. Arbitrary.
const readBlock = 2 * time.Minute

func look[T any](b Bounded, path string, read func() (T, error)) (T, error) {
	v, err := stuck.Read(b.f.calls, b.f.Real(path), read)
	return v, silence(err, path)
}

// silence says of which path it was asked.
func silence(err error, path string) error {
	if r := fault.ReasonsOf(err); len(r) == 1 && r[0].Code == "filesystem_silent" {
		return fault.Wrap(err, "look at %s", path)
	}
	return err
}

// write is of what changes a file, and what looks as long.
func (b Bounded) write(path string, do func() error) error {
	if err := b.f.calls.Answers(b.f.Real(path)); err != nil {
		return silence(err, path)
	}
	return do()
}

// Image is Files.Image.
func (b Bounded) Image(ctx context.Context, path, format string) (Image, error) {
	return stuck.Long(ctx, b.f.calls, b.f.Real(path), func() (Image, error) { return b.f.Image(ctx, path, format) })
}

// Layer is Files.Layer.
func (b Bounded) Layer(ctx context.Context, path, format string) (Layer, error) {
	return stuck.Long(ctx, b.f.calls, b.f.Real(path), func() (Layer, error) { return b.f.Layer(ctx, path, format) })
}

// Identity is Files.Identity.
func (b Bounded) Identity(path string) (string, error) {
	return look(b, path, func() (string, error) { return b.f.Identity(path) })
}

// Stamp is Files.Stamp.
func (b Bounded) Stamp(path string) (Stamp, error) {
	return look(b, path, func() (Stamp, error) { return b.f.Stamp(path) })
}

// Exists is Files.Exists.
func (b Bounded) Exists(path string) (bool, error) {
	return look(b, path, func() (bool, error) { return b.f.Exists(path) })
}

// Empty is Files.Empty.
func (b Bounded) Empty(dir string) (bool, error) {
	return look(b, dir, func() (bool, error) { return b.f.Empty(dir) })
}

// Resolve is Files.Resolve.
func (b Bounded) Resolve(path string) (string, error) {
	return look(b, path, func() (string, error) { return b.f.Resolve(path) })
}

// Size is Files.Size; 0 also where the file system does not answer.
func (b Bounded) Size(path string) int64 {
	n, _ := look(b, path, func() (int64, error) { return b.f.Size(path), nil })
	return n
}

// Space is Files.Space.
func (b Bounded) Space(path string) (Space, error) {
	return look(b, path, func() (Space, error) { return b.f.Space(path) })
}

// Shared is Files.Shared. What is exported may lie on other file systems than the file.
func (b Bounded) Shared(path string) (bool, error) {
	type kind struct{ mounted, there bool }
	k, err := look(b, path, func() (k kind, err error) {
		k.mounted, k.there, err = b.f.kindOf(path)
		return k, err
	})
	if err != nil || k.mounted || !k.there {
		return k.mounted, err
	}
	return b.f.exported(path)
}

// Lookup is Files.Lookup.
func (b Bounded) Lookup(path string) (real string, size, occupies int64, err error) {
	type found struct {
		real           string
		size, occupies int64
	}
	l, err := look(b, path, func() (l found, err error) {
		l.real, l.size, l.occupies, err = b.f.Lookup(path)
		return l, err
	})
	return l.real, l.size, l.occupies, err
}

// Writers is Files.Writers.
func (b Bounded) Writers(paths ...string) ([]Writer, error) { return b.f.Writers(paths...) }

// Openers is Files.Openers.
func (b Bounded) Openers(paths ...string) ([]Writer, error) { return b.f.Openers(paths...) }

// ReadBlock is Files.ReadBlock.
func (b Bounded) ReadBlock(path string, offset, most, block int64) (Block, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readBlock)
	defer cancel()
	return stuck.Long(ctx, b.f.calls, b.f.Real(path), func() (Block, error) { return b.f.ReadBlock(path, offset, most, block) })
}

// Plan is Files.Plan.
func (b Bounded) Plan(migration, part, path string) (Made, error) {
	return look(b, path, func() (Made, error) { return b.f.Plan(migration, part, path) })
}

// PlanReplace is Files.PlanReplace.
func (b Bounded) PlanReplace(migration, part, path string) (Replaced, error) {
	return look(b, path, func() (Replaced, error) { return b.f.PlanReplace(migration, part, path) })
}

// CopyNeeds is Files.CopyNeeds. It tries a copy.
func (b Bounded) CopyNeeds(path string) (n int64, err error) {
	err = b.write(path, func() (err error) { n, err = b.f.CopyNeeds(path); return err })
	return n, err
}

// Build is Files.Build.
func (b Bounded) Build(ctx context.Context, m *Made, format string, size int64) error {
	return b.write(m.Path, func() error { return b.f.Build(ctx, m, format, size) })
}

// BuildFrom is Files.BuildFrom.
func (b Bounded) BuildFrom(ctx context.Context, m *Made, format string, size int64, image, imageFormat string) error {
	return b.write(m.Path, func() error { return b.f.BuildFrom(ctx, m, format, size, image, imageFormat) })
}

// Publish is Files.Publish.
func (b Bounded) Publish(m Made) error {
	return b.write(m.Path, func() error { return b.f.Publish(m) })
}

// Keep is Files.Keep. Best effort, so a file system that does not answer is left alone.
func (b Bounded) Keep(m Made) {
	_ = b.write(m.Path, func() error { b.f.Keep(m); return nil })
}

// Unmake is Files.Unmake.
func (b Bounded) Unmake(m Made) error {
	return b.write(m.Path, func() error { return b.f.Unmake(m) })
}

// BuildCopy is Files.BuildCopy.
func (b Bounded) BuildCopy(ctx context.Context, r *Replaced, format string, size int64) error {
	return b.write(r.Path, func() error { return b.f.BuildCopy(ctx, r, format, size) })
}

// Replace is Files.Replace.
func (b Bounded) Replace(r Replaced) error {
	return b.write(r.Path, func() error { return b.f.Replace(r) })
}

// PutBack is Files.PutBack.
func (b Bounded) PutBack(r Replaced) error {
	return b.write(r.Path, func() error { return b.f.PutBack(r) })
}

// DropKept is Files.DropKept.
func (b Bounded) DropKept(r Replaced) error {
	return b.write(r.Path, func() error { return b.f.DropKept(r) })
}

// Remove is Files.Remove.
func (b Bounded) Remove(path string, s Stamp) error {
	return b.write(path, func() error { return b.f.Remove(path, s) })
}

// Grow is Files.Grow.
func (b Bounded) Grow(ctx context.Context, path, format string, size int64) error {
	return b.write(path, func() error { return b.f.Grow(ctx, path, format, size) })
}

// GiveTo is Files.GiveTo.
func (b Bounded) GiveTo(path string, uid, gid int) (given bool, err error) {
	err = b.write(path, func() (err error) { given, err = b.f.GiveTo(path, uid, gid); return err })
	return given, err
}

// OpenPart is Files.OpenPart.
func (b Bounded) OpenPart(m Made) (p Part, err error) {
	err = b.write(m.Part, func() (err error) { p, err = b.f.OpenPart(m); return err })
	if err != nil {
		return nil, err
	}
	return boundedPart{p, b, m.Part}, nil
}

type boundedPart struct {
	Part
	b    Bounded
	path string
}

// Trim is Part.Trim.
func (p boundedPart) Trim(kept, size int64) error {
	return p.b.write(p.path, func() error { return p.Part.Trim(kept, size) })
}

// WriteAt is Part.WriteAt.
func (p boundedPart) WriteAt(data []byte, offset int64) error {
	return p.b.write(p.path, func() error { return p.Part.WriteAt(data, offset) })
}

// Sync is Part.Sync.
func (p boundedPart) Sync() error { return p.b.write(p.path, p.Part.Sync) }
