package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Session is a connection to a storage server whose target is named after a PersistentVolume.
type Session struct {
	Path    string   // /sys/class/iscsi_session/session3, /sys/class/nvme/nvme1
	Target  string   // the name of the iSCSI target, the NQN of the NVMe subsystem
	Volume  string   // the PersistentVolume in that name
	State   string   // the kernel's: LOGGED_IN, FAILED; live, connecting
	Disks   []string // sdb, nvme1n1, and devices built on them: dm-0
	Numbers []string // their numbers, 8:16
	Other   string   // a device built on them that is neither multipath nor encrypted; empty if there is none
}

// maxSessions bounds the sessions to check.
const maxSessions = 8192

// Sessions lists the iSCSI sessions and the NVMe over TCP controllers whose targets are named after a PersistentVolume.
// If it returns an error, some are missing.
//
//	/sys/class/iscsi_session/session<N>/{targetname,state}, device/target<H:C:T>/<H:C:T:L>/block/<disk>
//	/sys/class/nvme/nvme<N>/{transport,subsysnqn,state}, nvme<N>n<M> or, of a path, nvme<N>c<P>n<M>
func Sessions(h *host.Host) ([]Session, error) {
	var found []Session
	var failures []error
	for class, read := range map[string]func(host.Files, *Session) error{"iscsi_session": readISCSI, "nvme": readNVMe} {
		dir := path.Join("/sys/class", class)
		names, err := h.Files.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && len(names) > maxSessions {
			err = fmt.Errorf("list %s: more than %d", dir, maxSessions)
		}
		if err != nil {
			failures = append(failures, err)
			continue
		}
		for _, name := range names {
			s := Session{Path: path.Join(dir, name)}
			if err := read(h.Files, &s); err != nil && !vanished(err) {
				failures = append(failures, err)
			} else if err == nil && s.Volume != "" {
				found = append(found, s)
			}
		}
	}
	slices.SortFunc(found, func(a, b Session) int { return strings.Compare(a.Path, b.Path) })
	return found, errors.Join(failures...)
}

// readISCSI reads a session: drivers/scsi/scsi_transport_iscsi.c.
func readISCSI(files host.Files, s *Session) (err error) {
	if s.Target, err = files.Text(path.Join(s.Path, "targetname")); err != nil {
		return err
	}
	if s.Volume = persistentVolume.FindString(s.Target); s.Volume == "" {
		return nil
	}
	if s.State, err = files.Text(path.Join(s.Path, "state")); err != nil {
		return err
	}
	device := path.Join(s.Path, "device")
	targets, err := files.List(device)
	if err != nil {
		return err
	}
	for _, target := range targets {
		if !strings.HasPrefix(target, "target") {
			continue
		}
		units, err := files.List(path.Join(device, target))
		if err != nil {
			return err
		}
		for _, unit := range units {
			if strings.Count(unit, ":") != 3 {
				continue
			}
			disks, err := files.List(path.Join(device, target, unit, "block"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // a unit without it is not a disk
				return err
			}
			s.Disks = append(s.Disks, disks...)
		}
	}
	return s.addHolders(files)
}

// nvmeDisk matches the name of a namespace, or of a path to one: nvme1n1, nvme1c2n1.
var nvmeDisk = regexp.MustCompile(`^(nvme\d+)(?:c\d+)?(n\d+)$`)

// readNVMe reads a controller: drivers/nvme/host/sysfs.c.
func readNVMe(files host.Files, s *Session) error {
	transport, err := files.Text(path.Join(s.Path, "transport"))
	if err != nil || transport != "tcp" {
		return err
	}
	if s.Target, err = files.Text(path.Join(s.Path, "subsysnqn")); err != nil {
		return err
	}
	if s.Volume = persistentVolume.FindString(s.Target); s.Volume == "" {
		return nil
	}
	if s.State, err = files.Text(path.Join(s.Path, "state")); err != nil {
		return err
	}
	names, err := files.List(s.Path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if parts := nvmeDisk.FindStringSubmatch(name); parts != nil {
			s.Disks = append(s.Disks, parts[1]+parts[2])
		}
	}
	return s.addHolders(files)
}

// addHolders adds the devices built on the disks, their partitions, and the numbers of all.
func (s *Session) addHolders(files host.Files) error {
	const most = 256
	slices.Sort(s.Disks)
	for at := 0; at < len(s.Disks); at++ {
		disk := s.Disks[at]
		dir := path.Join("/sys/class/block", disk) // also contains partitions
		number, err := files.Text(path.Join(dir, "dev"))
		if err != nil {
			return err
		}
		s.Numbers = append(s.Numbers, number)
		if uuid, err := files.Text(path.Join(dir, "dm/uuid")); err == nil && !strings.HasPrefix(uuid, "mpath-") &&
			!strings.HasPrefix(uuid, "CRYPT-") && !strings.HasPrefix(uuid, "part") {
			s.Other = "/dev/" + disk
		} else if err != nil && strings.HasPrefix(disk, "md") {
			s.Other = "/dev/" + disk
		}
		names, err := files.List(dir)
		if err != nil {
			return err
		}
		holders, err := files.List(path.Join(dir, "holders"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, name := range names {
			if strings.HasPrefix(name, disk) { // a partition: sda1, nvme1n1p1
				holders = append(holders, name)
			}
		}
		slices.Sort(holders)
		for _, holder := range holders {
			if !slices.Contains(s.Disks, holder) {
				s.Disks = append(s.Disks, holder)
			}
		}
		if len(s.Disks) > most {
			return fmt.Errorf("%s: more than %d devices are made of its disks", s.Path, most)
		}
	}
	return nil
}
