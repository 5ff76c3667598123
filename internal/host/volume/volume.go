// Package volume reads kubelet's files about the volumes of CSI drivers. It follows no symbolic link and crosses no
// mount below kubelet's directories, so that it never touches a volume itself.
package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// Bounds of the data read.
const (
	maxNote    = 64 << 10 // bytes of a vol_data.json
	maxEntries = 8192     // of one directory
	maxText    = 1024     // bytes of a driver's name or a handle
)

// Note is the content of kubelet's vol_data.json for a volume: pkg/volume/csi of Kubernetes.
type Note struct {
	Driver string `json:"driverName"`
	Handle string `json:"volumeHandle"`
	Volume string `json:"specVolID"` // name of the PersistentVolume; not in the note of a staged filesystem
}

// HandleSum returns the name of the directory in which kubelet stages a volume with this handle.
func HandleSum(handle string) string {
	sum := sha256.Sum256([]byte(handle))
	return hex.EncodeToString(sum[:])
}

// ReadNote reads the note of a volume: a regular file of root, in a directory below root.
func ReadNote(files host.Files, root, dir string) (Note, error) {
	name := path.Join(dir, "vol_data.json")
	data, err := kubelet.ReadBeneath(files.Path(root), name, maxNote)
	if err != nil {
		return Note{}, err
	}
	var note Note
	if err := json.Unmarshal(data, &note); err != nil {
		return Note{}, fmt.Errorf("parse %s: %w", path.Join(root, name), err)
	}
	if note.Driver == "" || note.Handle == "" || len(note.Driver)+len(note.Handle)+len(note.Volume) > maxText {
		return Note{}, fmt.Errorf("parse %s: it names no driver or no volume, or with more than %d bytes",
			path.Join(root, name), maxText)
	}
	return note, nil
}

// Used lists the CSI volumes used by the directories of pods. The UIDs may be of pods that are gone.
type Used struct {
	Handles map[string][]string // UIDs by HandleSum
	Volumes map[string][]string // UIDs by the name of the PersistentVolume, with ~ for /
	Drivers map[string][]string // UIDs by the name of the driver, in lower case; without raw block volumes
	Unread  []string            // why the volumes of some pods are unknown, the first few reasons
}

// maxUnread bounds Used.Unread.
const maxUnread = 3

// UsedByPods reads the volumes of all pods in kubelet's directory:
//
//	pods/<uid>/volumes/kubernetes.io~csi/<volume>/vol_data.json
//	pods/<uid>/volumeDevices/kubernetes.io~csi/<volume>   of raw block volumes
//
// Kubelet writes the note of a volume before it asks the driver to publish it, and removes the note after the volume is
// unpublished.
func UsedByPods(h *host.Host) (Used, error) {
	used := Used{Handles: map[string][]string{}, Volumes: map[string][]string{}, Drivers: map[string][]string{}}
	root := path.Join(h.Paths.KubeletRoot, "pods")
	uids, err := namesBeneath(h.Files, root, ".")
	if err != nil {
		return used, hosterr.Ignore(err, fs.ErrNotExist)
	}
	for _, uid := range uids {
		if !host.IsPodUID(uid) {
			continue
		}
		for _, kind := range []string{"volumes", "volumeDevices"} {
			used.addPod(h.Files, root, uid, path.Join(uid, kind, "kubernetes.io~csi"))
		}
	}
	return used, nil
}

func (u *Used) addPod(files host.Files, root, uid, dir string) {
	volumes, err := namesBeneath(files, root, dir)
	if absent(err) {
		return
	}
	if err != nil {
		u.unread(err)
		return
	}
	for _, volume := range volumes {
		u.Volumes[volume] = append(u.Volumes[volume], uid)
		if path.Base(path.Dir(dir)) == "volumeDevices" {
			continue
		}
		note, err := ReadNote(files, root, path.Join(dir, volume))
		switch {
		case err == nil:
			sum := HandleSum(note.Handle)
			u.Handles[sum] = append(u.Handles[sum], uid)
			driver := strings.ToLower(note.Driver)
			u.Drivers[driver] = append(u.Drivers[driver], uid)
		case !absent(err):
			u.unread(err)
		}
	}
}

func (u *Used) unread(err error) {
	if len(u.Unread) < maxUnread {
		u.Unread = append(u.Unread, err.Error())
	}
}

// absent reports whether a file does not exist: kubelet has not made it yet, or has removed it.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// namesBeneath lists a directory below root.
func namesBeneath(files host.Files, root, name string) ([]string, error) {
	fd, err := kubelet.OpenBeneath(files.Path(root), name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), path.Join(root, name))
	defer dir.Close()
	names, err := dir.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list %s: %w", dir.Name(), err)
	}
	if len(names) == maxEntries {
		return nil, fmt.Errorf("list %s: %d entries or more", dir.Name(), maxEntries)
	}
	return names, nil
}
