// Package cni reads libcni's cache of attachments. It runs no plugin and makes no decisions: it reports a malformed
// file together with the others.
package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// cniCacheKind is the only format that libcni has written since 2019 (v0.8).
const cniCacheKind = "cniCacheV1"

// maxAttachment bounds one cached CNI result; real ones are 1 to 4 KiB.
const maxAttachment = 1 << 20

// Attachment is one cached result of a CNI ADD, <CNICacheDir>/results/<network>-<container>-<interface>, which libcni
// keeps until the DEL: https://github.com/containernetworking/cni/blob/main/libcni/api.go (cachedInfo).
type Attachment struct {
	File string
	Stat host.FileStat

	// how its content is malformed, as after a crash during a write; no field below is set then
	Malformed   string
	Kind        string // "cniCacheV1"; for another kind no field below is set
	ContainerID string // of the sandbox
	IfName      string
	Network     string
	Netns       string
	Args        map[string]string // CNI_ARGS: K8S_POD_UID, K8S_POD_NAMESPACE, K8S_POD_NAME …
	Interfaces  []AttachmentInterface
	Addresses   []string // with prefix length
	// dataDir of each plugin of the configuration that uses host-local; "": the default
	LeaseDirs []string
}

// AttachmentInterface is one interface in the result: on the host if Sandbox is empty.
type AttachmentInterface struct {
	Name    string `json:"name"`
	MAC     string `json:"mac"`
	Sandbox string `json:"sandbox"`
}

// ParseAttachment parses one cached result. For a kind other than cniCacheV1 it returns only the kind.
func ParseAttachment(data []byte) (Attachment, error) {
	var cached struct {
		Kind        string      `json:"kind"`
		ContainerID string      `json:"containerId"`
		IfName      string      `json:"ifName"`
		NetworkName string      `json:"networkName"`
		Config      []byte      `json:"config"`
		Netns       string      `json:"netns"`
		Args        [][2]string `json:"cniArgs"`
		Result      struct {
			Interfaces []AttachmentInterface `json:"interfaces"`
			IPs        []struct {
				Address string `json:"address"`
			} `json:"ips"`
		} `json:"result"`
	}
	var kind struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return Attachment{}, err
	}
	if kind.Kind != cniCacheKind {
		return Attachment{Kind: kind.Kind}, nil
	}
	if err := json.Unmarshal(data, &cached); err != nil {
		return Attachment{}, err
	}
	if cached.ContainerID == "" || cached.IfName == "" || cached.NetworkName == "" {
		return Attachment{}, fmt.Errorf("containerId %q, ifName %q, networkName %q: none may be empty",
			cached.ContainerID, cached.IfName, cached.NetworkName)
	}
	a := Attachment{
		Kind: cached.Kind, ContainerID: cached.ContainerID, IfName: cached.IfName, Network: cached.NetworkName,
		Netns: cached.Netns, Interfaces: cached.Result.Interfaces, Args: make(map[string]string, len(cached.Args)),
	}
	for i := 0; a.Netns == "" && i < len(a.Interfaces); i++ {
		a.Netns = a.Interfaces[i].Sandbox // libcni before v1.2 does not store the namespace, but the result names it
	}
	for _, arg := range cached.Args {
		a.Args[arg[0]] = arg[1]
	}
	for _, ip := range cached.Result.IPs {
		a.Addresses = append(a.Addresses, ip.Address)
	}
	a.LeaseDirs = leaseDirs(cached.Config)
	return a, nil
}

// leaseDirs reads a cached configuration: a list of plugins, or a single one.
func leaseDirs(config []byte) []string {
	type plugin struct {
		IPAM struct {
			Type    string `json:"type"`
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	var list struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal(config, &list); err != nil {
		return nil // a DEL with it will report it
	}
	var dirs []string
	for _, p := range append(list.Plugins, list.plugin) {
		if p.IPAM.Type == "host-local" {
			dirs = append(dirs, p.IPAM.DataDir)
		}
	}
	return dirs
}

// Attachments reads all cached CNI results. The error joins one for each unreadable file; the attachments of all other
// files are returned with it, malformed ones too. A missing cache counts as empty.
func Attachments(h *host.Host) ([]Attachment, error) {
	dir := path.Join(h.Paths.CNICacheDir, "results")
	entries, _, err := h.Files.Entries(dir)
	if err != nil {
		return nil, hosterr.Ignore(err, fs.ErrNotExist)
	}
	var found []Attachment
	var failures []error
	for _, entry := range entries {
		a, err := attachment(h, path.Join(dir, entry.Name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted meanwhile
		case err != nil:
			failures = append(failures, err)
		default:
			found = append(found, a)
		}
	}
	return found, errors.Join(failures...)
}

func attachment(h *host.Host, file string) (Attachment, error) {
	stat, err := h.Files.Stat(file)
	if err != nil {
		return Attachment{}, err
	}
	if !stat.IsFile() {
		return Attachment{File: file, Stat: stat}, nil // reading a pipe could block; libcni creates none
	}
	if stat.Size > maxAttachment {
		return Attachment{File: file, Stat: stat, Malformed: fmt.Sprintf("larger than %d bytes", maxAttachment)}, nil
	}
	data, err := h.Files.Read(file)
	if err != nil {
		return Attachment{}, err
	}
	a, err := ParseAttachment(data)
	if err != nil {
		return Attachment{File: file, Stat: stat, Malformed: err.Error()}, nil //nolint:nilerr // it is in Malformed
	}
	a.File, a.Stat = file, stat
	return a, nil
}
