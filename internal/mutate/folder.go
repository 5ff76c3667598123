package mutate

import (
	"context"
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

// Folder is a directory of the system in which files may be removed one by one: systemd's folders of core dumps and
// of the journal. Only root may be able to write in it.
type Folder struct {
	Path string // absolute; its last component is never followed
	File FileID // zero before it is inspected
}

// FolderFile is a regular file with one name, in a folder.
type FolderFile struct {
	Name     string    `json:"name"`
	File     FileID    `json:"file"`
	Bytes    uint64    `json:"bytes"`    // used on the disk
	Modified time.Time `json:"modified"` // the later of the times of its content and of its attributes
}

// ListFolder returns the files in a folder, and the folder with its identity. It leaves out directories, links, files
// with several names and mount points. If there is no such folder, it returns no files.
func (d *Mutator) ListFolder(ctx context.Context, folder string) (Folder, []FolderFile, error) {
	folder = path.Clean(folder)
	a, err := d.do(ctx, request{Op: opFolder, Base: path.Dir(folder), Path: path.Base(folder)})
	return Folder{folder, a.Folder}, a.Files, err
}

// RemoveFrom removes a file from a folder, if both are the listed ones and the file was not changed since.
func (d *Mutator) RemoveFrom(ctx context.Context, folder Folder, file FolderFile) error {
	_, err := d.do(ctx, request{Op: opRemoveFrom, Base: path.Dir(folder.Path), Path: path.Base(folder.Path),
		File: folder.File, Remove: file})
	return err
}

// openFolder opens the folder of a request. It may be a mount point, but not a link.
func openFolder(r request) (fd int, st unix.Statx_t, err error) {
	if !isLocal(r.Path) || strings.ContainsRune(r.Path, '/') {
		return -1, st, refuse("%q is no name of a folder", r.Path)
	}
	base, err := openBase(r.Base)
	if errors.Is(err, unix.ENOENT) {
		err = errGone
	}
	if err != nil {
		return -1, st, err
	}
	defer unix.Close(base)
	fd, err = openIfThere(base, r.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, resolveBeneath)
	if err != nil {
		return -1, st, err
	}
	st, err = statAt(fd, "")
	switch {
	case err != nil:
	case !owned.UID(st.Uid) || st.Mode&0o022 != 0:
		err = refuse("%s belongs to user %d and has mode %o: others than root can write in it", path.Join(r.Base, r.Path),
			st.Uid, st.Mode)
	case r.File != FileID{} && fileID(st) != r.File:
		err = changed("folder %s", path.Join(r.Base, r.Path))
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

func folderChild(r request) (FileID, []FolderFile, error) {
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
		return FileID{}, nil, refuse("the folder %s holds more than %d entries", r.Path, maxTree)
	}
	slices.Sort(names)
	var files []FolderFile
	for _, name := range names {
		file, plain, err := folderFile(fd, name)
		if err != nil && !errors.Is(err, errGone) {
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
	st, err := statAt(dir, name)
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

func removeFromChild(r request) error {
	if name := r.Remove.Name; !isLocal(name) || strings.ContainsRune(name, '/') || (r.File == FileID{}) {
		return refuse("%q is no name in a folder that was listed", name)
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
		return changed("file %s", path.Join(r.Base, r.Path, r.Remove.Name))
	}
	return gone(r.Remove.Name, unix.Unlinkat(fd, r.Remove.Name, 0))
}
