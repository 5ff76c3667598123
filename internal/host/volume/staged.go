package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// Staged is a volume that kubelet has staged on the node, or has begun to stage: its directory exists.
type Staged struct {
	Path   string   // its directory, which kubelet removes last
	Sum    string   // HandleSum of its handle; empty if the directory is named after the PersistentVolume
	Volume string   // name of the PersistentVolume, with ~ for /; empty if the directory is named after the handle
	Block  bool     // a raw block volume
	Pods   []string // names in the directory of a block volume that are UIDs of pods
	Note   Note
	Err    error // why the note is unknown; nil if there is none, as for the staging directory of block volumes

	Device, Inode uint64 // of the directory
}

// StagedVolumes lists the staged volumes of CSI drivers. It only lists directories and reads notes:
//
//	<kubelet root>/plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/{globalmount,vol_data.json}
//	<kubelet root>/plugins/kubernetes.io/csi/pv/<volume>/{globalmount,vol_data.json}   before 1.24
//	<kubelet root>/plugins/kubernetes.io/csi/volumeDevices/<volume>/{dev/<pod UID>,data/vol_data.json}
//	<kubelet root>/plugins/kubernetes.io/csi/volumeDevices/{staging,publish}/<volume>
func StagedVolumes(h *host.Host) ([]Staged, error) {
	s := stagedSearch{files: h.Files, root: Dir(h)}
	drivers, err := namesBeneath(s.files, s.root, ".")
	if absent(err) {
		return nil, nil // no CSI driver was ever used here
	}
	if err != nil {
		return nil, err
	}
	for _, driver := range drivers {
		switch driver {
		case "volumeDevices":
			for _, below := range []string{".", "staging", "publish"} {
				s.list(path.Join(driver, below), s.block)
			}
		case "pv":
			s.list(driver, s.filesystem)
		default:
			if kubelet.IsCSIDriverName(driver) {
				s.list(driver, s.filesystem)
			}
		}
	}
	return s.found, errors.Join(s.errs...)
}

// Dir returns the directory that StagedVolumes lists.
func Dir(h *host.Host) string { return path.Join(h.Paths.KubeletRoot, "plugins/kubernetes.io/csi") }

type stagedSearch struct {
	files host.Files
	root  string
	found []Staged
	errs  []error
}

// list adds the volumes in a directory of the root.
func (s *stagedSearch) list(dir string, add func(Staged, string)) {
	names, err := namesBeneath(s.files, s.root, dir)
	if absent(err) {
		return
	}
	if err == nil && len(s.found)+len(names) > maxEntries {
		err = fmt.Errorf("list %s: more than %d volumes", s.root, maxEntries)
	}
	if err != nil {
		s.errs = append(s.errs, err)
		return
	}
	for _, name := range names {
		at := path.Join(dir, name)
		fd, err := kubelet.OpenBeneath(s.files.Path(s.root), at, unix.O_PATH)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
			continue // gone, or a link
		}
		var stat unix.Stat_t
		if err == nil {
			err = errors.Join(unix.Fstat(fd, &stat), unix.Close(fd))
		}
		if err != nil && !errors.Is(err, unix.EXDEV) { // a mount on it is not crossed
			s.errs = append(s.errs, err)
			continue
		}
		add(Staged{Path: path.Join(s.root, at), Device: stat.Dev, Inode: stat.Ino}, at)
	}
}

// filesystem adds a volume with a filesystem.
func (s *stagedSearch) filesystem(v Staged, at string) {
	if name := path.Base(at); path.Dir(at) == "pv" {
		v.Volume = name
	} else if v.Sum = name; !host.IsContainerID(name) { // the form of a SHA-256 too
		return
	}
	v.Note, v.Err = ReadNote(s.files, s.root, at)
	s.found = append(s.found, v)
}

// block adds a raw block volume.
func (s *stagedSearch) block(v Staged, at string) {
	v.Volume, v.Block = path.Base(at), true
	links := at
	if path.Dir(at) == "volumeDevices" {
		if v.Volume == "staging" || v.Volume == "publish" {
			return
		}
		links = path.Join(at, "dev")
		v.Note, v.Err = ReadNote(s.files, s.root, path.Join(at, "data"))
	}
	names, err := namesBeneath(s.files, s.root, links)
	if err != nil && !absent(err) && !errors.Is(err, unix.EXDEV) {
		v.Err = errors.Join(v.Err, err)
	}
	for _, name := range names {
		if host.IsPodUID(name) {
			v.Pods = append(v.Pods, name)
		}
	}
	s.found = append(s.found, v)
}
