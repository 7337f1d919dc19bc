package host

import (
	"context"

	"berth/agent/host/disks"
)

// Files reach the files of this host's guests. disks.Files are the machine's own;
// what each method promises is said there.
type Files interface {
	// Image and what follows it look; fault.NotFound where there is no such file.
	Image(ctx context.Context, path, format string) (disks.Image, error)
	Layer(ctx context.Context, path, format string) (disks.Layer, error)
	Identity(path string) (string, error)
	Stamp(path string) (disks.Stamp, error)
	Exists(path string) (bool, error)
	Resolve(path string) (string, error)
	Size(path string) int64
	Space(path string) (disks.Space, error)

	// Plan, Build, Publish and Keep make a file, Unmake takes back what they made,
	// however far they got.
	Plan(migration, part, path string) (disks.Made, error)
	Build(ctx context.Context, m *disks.Made, format string, size int64) error
	BuildFrom(ctx context.Context, m *disks.Made, format string, size int64, image, imageFormat string) error
	Publish(m disks.Made) error
	Keep(m disks.Made)
	Unmake(m disks.Made) error

	// PlanReplace, then BuildCopy or BuildFrom, then Replace make a file anew in the place
	// of another. PutBack takes that back, however far it got; DropKept ends it.
	PlanReplace(migration, part, path string) (disks.Replaced, error)
	CopyNeeds(path string) (int64, error)
	BuildCopy(ctx context.Context, r *disks.Replaced, format string, size int64) error
	Replace(r disks.Replaced) error
	PutBack(r disks.Replaced) error
	DropKept(r disks.Replaced) error

	// Grow makes a file larger where it is.
	Grow(ctx context.Context, path, format string, size int64) error

	// GiveTo makes a file a user's, and says whether it was not his before.
	GiveTo(path string, uid, gid int) (bool, error)

	// Writers finds who has files open for writing.
	Writers(paths ...string) ([]disks.Writer, error)

	// Openers finds who has files open in any way.
	Openers(paths ...string) ([]disks.Writer, error)

	// Shared reports whether other hosts may see a file.
	Shared(path string) (bool, error)

	// Empty reports whether a folder has nothing in it, or is not there.
	Empty(dir string) (bool, error)

	// Remove removes the file of that stamp and no other.
	Remove(path string, s disks.Stamp) error

	// Lookup, ReadBlock and OpenPart are for files that are shipped to another host.
	Lookup(path string) (real string, size, occupies int64, err error)
	ReadBlock(path string, offset, most, block int64) (disks.Block, error)
	OpenPart(m disks.Made) (disks.Part, error)
}

var _ Files = disks.Bounded{}
