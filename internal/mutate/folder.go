package mutate

import (
	"context"
	"path"

	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// Folder is a directory of the system in which files may be removed one by one: systemd's folders of core dumps and
// of the journal. Only root may be able to write in it.
type Folder struct {
	Path string // absolute; its last component is never followed
	File FileID // zero before it is inspected
}

// FolderFile is a regular file with one name, in a folder.
type FolderFile = child.FolderFile

// ListFolder returns the files in a folder, and the folder with its identity. It leaves out directories, links, files
// with several names and mount points. If there is no such folder, it returns no files.
func (d *Mutator) ListFolder(ctx context.Context, folder string) (Folder, []FolderFile, error) {
	folder = path.Clean(folder)
	a, err := d.do(ctx, child.Request{Op: child.OpFolder, Base: path.Dir(folder), Path: path.Base(folder)})
	return Folder{folder, a.Folder}, a.Files, err
}

// RemoveFrom removes a file from a folder, if both are the listed ones and the file was not changed since.
func (d *Mutator) RemoveFrom(ctx context.Context, folder Folder, file FolderFile) error {
	_, err := d.do(ctx, child.Request{Op: child.OpRemoveFrom, Base: path.Dir(folder.Path), Path: path.Base(folder.Path),
		File: folder.File, Remove: file})
	return err
}
