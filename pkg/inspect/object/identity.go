package object

import (
	"encoding/json"
	"maps"
)

// Identity is recorded when an object is first seen and compared before every action. It distinguishes the object from
// another one that later gets the same name. The kinds of objects fill these parts; the others are zero:
//
//	sandbox, container, containerd-container, lease  Runtime
//	process, shim                                    Process
//	mount, host-mount                                Mount
//	cgroup, stray-cgroup, pod-directory, pod-logs, log-link, sandbox-directory, rootfs, run-file  File
//	cni-attachment          File, with size and time of the cache file
//	ipam-lease              File, with its time
//	netns                   File: the inode of the namespace; device and inode of the file if nothing is mounted on it
//	link                    Link
//	task                    Names: id (hexadecimal), pid
//	snapshot                Runtime: its time of creation; Names: key, snapshotter
//	port-mapping            Names: family (ip, ip6), table, chain, handle, comment of the rule
//	block-device            Names: device, sequence (diskseq; empty before Linux 5.15), volume
//	systemd-unit            Names: unit
//	device-allocation       Names: uid, resource
//	plugin-socket           File: the inode; Names: changed (nanoseconds since the epoch)
//	storage-session         Names: target
//	volume-attachment       Names: name
//	detached-volume         Names: name; File of its staging directory, or Names: target of its session
//	shared-memory           Names: id, key, creator (PID), size
//	staged-volume           File: its directory; Mount: ID, device and root of its mount if it has none
//
// Its JSON form is one object of texts; a reader of old records and histories depends on the names in it.
type Identity struct {
	Runtime RuntimeID
	Process ProcessID
	Mount   MountID
	File    FileID
	Link    LinkID
	Names   map[string]string // compared, never interpreted
}

// RuntimeID identifies an object of the container runtime.
type RuntimeID struct {
	ID      string `json:"id,omitempty"`   // hexadecimal
	Created int64  `json:"created,string"` // nanoseconds since the epoch
}

// ProcessID identifies a process; PIDs are reused.
type ProcessID struct {
	PID       int    `json:"pid,string"`
	StartTime uint64 `json:"startTime,string"` // clock ticks since boot
}

// MountID identifies a mount in the host's mount table; the kernel reuses IDs.
type MountID struct {
	ID     int    `json:"id,string"`
	Device string `json:"device"` // major:minor
	Root   string `json:"root"`
	Point  string `json:"point,omitempty"`
	Source string `json:"source,omitempty"`
	Type   string `json:"type,omitempty"`
}

// FileID identifies a file, a directory, a cgroup, or the namespace that a file pins.
type FileID struct {
	Device   string `json:"device,omitempty"` // major:minor
	Inode    uint64 `json:"inode,string"`
	Size     uint64 `json:"size,string,omitempty"`     // bytes
	Modified int64  `json:"modified,string,omitempty"` // nanoseconds since the epoch
}

// LinkID identifies one end of a veth pair.
type LinkID struct {
	Index         int    `json:"index,string"`
	PeerIndex     int    `json:"peerIndex,string"`
	PeerNamespace int    `json:"peerNamespace,string"` // nsid; -1: this namespace
	MAC           string `json:"mac"`
	// inode in nsfs of the other end's namespace; 0: no runtime keeps that mounted, which alone resolves the nsid
	Namespace uint64 `json:"namespace,string,omitempty"`
}

// part is a part of an identity, with a name in JSON that only this part has.
type part struct {
	of  string
	is  any // a pointer to it
	set bool
}

func (i *Identity) parts() []part {
	return []part{
		{"created", &i.Runtime, i.Runtime != RuntimeID{}}, {"startTime", &i.Process, i.Process != ProcessID{}},
		{"root", &i.Mount, i.Mount != MountID{}}, {"inode", &i.File, i.File != FileID{}},
		{"index", &i.Link, i.Link != LinkID{}},
	}
}

// Equal reports whether both are the identity of the same object.
func (i Identity) Equal(other Identity) bool {
	return i.Runtime == other.Runtime && i.Process == other.Process && i.Mount == other.Mount &&
		i.File == other.File && i.Link == other.Link && maps.Equal(i.Names, other.Names)
}

// Values returns all parts as texts by their names in JSON, for people.
func (i Identity) Values() map[string]string {
	values := make(map[string]string)
	maps.Copy(values, i.Names)
	for _, p := range i.parts() {
		if p.set {
			data, _ := json.Marshal(p.is)     // plain data
			_ = json.Unmarshal(data, &values) // adds to it
		}
	}
	return values
}

func (i Identity) MarshalJSON() ([]byte, error) { return json.Marshal(i.Values()) }

// UnmarshalJSON reads the form of MarshalJSON. A malformed number is an error.
func (i *Identity) UnmarshalJSON(data []byte) error {
	*i = Identity{}
	if err := json.Unmarshal(data, &i.Names); err != nil {
		return err
	}
	for _, p := range i.parts() {
		if _, ok := i.Names[p.of]; !ok {
			continue
		}
		if err := json.Unmarshal(data, p.is); err != nil {
			return err
		}
	}
	typed := *i
	typed.Names = nil
	for name := range typed.Values() {
		delete(i.Names, name)
	}
	return nil
}
