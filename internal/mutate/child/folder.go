package child

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// FolderFile is a regular file with one name, in a folder.
type FolderFile struct {
	Name     string    `json:"name"`
	File     FileID    `json:"file"`
	Bytes    uint64    `json:"bytes"`    // used on the disk
	Modified time.Time `json:"modified"` // the later of the times of its content and of its attributes
}

// openFolder opens the folder of a request. It may be a mount point, but not a link.
func openFolder(r Request) (fd int, st unix.Statx_t, err error) {
	if !IsLocal(r.Path) || strings.ContainsRune(r.Path, '/') {
		return -1, st, Refuse("%q is no name of a folder", r.Path)
	}
	base, err := OpenBase(r.Base)
	if errors.Is(err, unix.ENOENT) {
		err = ErrGone
	}
	if err != nil {
		return -1, st, err
	}
	defer unix.Close(base)
	fd, err = openIfThere(base, r.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, ResolveBeneath)
	if err != nil {
		return -1, st, err
	}
	st, err = StatAt(fd, "")
	switch {
	case err != nil:
	case !owned.UID(st.Uid) || st.Mode&0o022 != 0:
		err = Refuse("%s belongs to user %d and has mode %o: others than root can write in it", path.Join(r.Base, r.Path),
			st.Uid, st.Mode)
	case r.File != FileID{} && fileID(st) != r.File:
		err = Changed("folder %s", path.Join(r.Base, r.Path))
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

func listFolder(r Request) (FileID, []FolderFile, error) {
	fd, st, err := openFolder(r)
	if err != nil {
		return FileID{}, nil, err
	}
	dir := os.NewFile(uintptr(fd), r.Path)
	defer dir.Close()
	names, err := dir.Readdirnames(maxTree + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return FileID{}, nil, fmt.Errorf("list %s: %w", r.Path, err)
	}
	if len(names) > maxTree {
		return FileID{}, nil, Refuse("the folder %s holds more than %d entries", r.Path, maxTree)
	}
	slices.Sort(names)
	var files []FolderFile
	for _, name := range names {
		file, plain, err := folderFile(fd, name)
		if err != nil && !errors.Is(err, ErrGone) {
			return FileID{}, nil, err
		}
		if plain {
			files = append(files, file)
		}
	}
	return fileID(st), files, nil
}

// folderFile stats one name in a folder. plain means a regular file with one name, and not a mount point.
func folderFile(dir int, name string) (file FolderFile, plain bool, err error) {
	st, err := StatAt(dir, name)
	if err != nil {
		return FolderFile{}, false, err
	}
	mounted, err := isMountPoint(st)
	if err != nil || mounted || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || st.Blocks > math.MaxInt64 {
		return FolderFile{}, false, err
	}
	modified := time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec))
	if changed := time.Unix(st.Ctime.Sec, int64(st.Ctime.Nsec)); changed.After(modified) {
		modified = changed
	}
	return FolderFile{Name: name, File: fileID(st), Bytes: st.Blocks * 512, Modified: modified.UTC()}, true, nil
}

func removeFrom(r Request) error {
	if name := r.Remove.Name; !IsLocal(name) || strings.ContainsRune(name, '/') || (r.File == FileID{}) {
		return Refuse("%q is no name in a folder that was listed", name)
	}
	fd, _, err := openFolder(r)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, plain, err := folderFile(fd, r.Remove.Name)
	if err != nil {
		return err
	}
	if !plain || now.File != r.Remove.File || !now.Modified.Equal(r.Remove.Modified) {
		return Changed("file %s", path.Join(r.Base, r.Path, r.Remove.Name))
	}
	return Gone(r.Remove.Name, unix.Unlinkat(fd, r.Remove.Name, 0))
}
