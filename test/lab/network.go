package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func linkExists(name string) bool {
	_, err := os.Lstat(filepath.Join("/sys/class/net", name))
	return err == nil
}

// createNodeLink creates the link with the node's address, and marks it with its owner.
func (l *Lab) createNodeLink(ctx context.Context) error {
	for _, args := range [][]string{
		{"link", "add", NodeLink, "type", "bridge"},
		{"link", "set", NodeLink, "alias", l.Dir},
		{"addr", "add", NodeIP + "/32", "dev", NodeLink},
		{"link", "set", NodeLink, "up"},
	} {
		if _, err := run(ctx, "", append([]string{"/sbin/ip"}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// claim returns an error while a lab in another folder uses the machine: links, cgroups and addresses are the same.
func (l *Lab) claim() error {
	alias, err := os.ReadFile(filepath.Join("/sys/class/net", NodeLink, "ifalias"))
	owner := strings.TrimSpace(string(alias))
	if err != nil || owner == "" || owner == l.Dir {
		return nil //nolint:nilerr // it has no owner
	}
	if _, err := os.Stat(stateFile(owner)); err == nil {
		return fmt.Errorf("this machine already has a lab in %s; remove it first (labctl --dir %s down)", owner, owner)
	}
	return nil
}

// cniResults are libcni's records of the lab's pods. With containerd they cannot be moved. Those of the loopback
// network have no name of ours: a pod of the lab is recognised by its network namespace or by its sandbox's ID.
func cniResults(p Paths) []string {
	sandboxes, _ := filepath.Glob(filepath.Join(p.ContainerdRoot, "io.containerd.grpc.v1.cri/sandboxes/*"))
	files, _ := filepath.Glob(filepath.Join(p.CNICacheDir, "results/*")) // the patterns are well-formed
	var found []string
	for _, file := range files {
		data, _ := os.ReadFile(file) // an unreadable file is treated like a torn one: the other marks decide
		ours := strings.HasPrefix(filepath.Base(file), Network+"-") || bytes.Contains(data, []byte(p.NetnsDir+"/"))
		for _, sandbox := range sandboxes {
			ours = ours || strings.Contains(filepath.Base(file), filepath.Base(sandbox))
		}
		if ours {
			found = append(found, file)
		}
	}
	return found
}

// labLinks returns the existing links of the lab: its bridges, the ports of the pods' bridge, and the host's ends of
// the pods' pairs as libcni recorded them, compared by name and hardware address.
func labLinks(p Paths) []string {
	var found []string
	add := func(name string) {
		if linkExists(name) && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	ports, _ := os.ReadDir(filepath.Join("/sys/class/net", PodBridge, "brif"))
	for _, port := range ports {
		add(port.Name())
	}
	for _, file := range cniResults(p) {
		for _, name := range recordedVeths(file) {
			add(name)
		}
	}
	add(PodBridge)
	add(NodeLink)
	return found
}

func recordedVeths(file string) []string {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var record struct {
		Result struct {
			Interfaces []struct{ Name, Mac, Sandbox string }
		}
	}
	if json.Unmarshal(data, &record) != nil {
		return nil // torn by a crash; the bridge knows its ports too
	}
	var names []string
	for _, i := range record.Result.Interfaces {
		link, err := net.InterfaceByName(i.Name)
		if i.Sandbox == "" && strings.HasPrefix(i.Name, "veth") && err == nil && link.HardwareAddr.String() == i.Mac {
			names = append(names, i.Name)
		}
	}
	return names
}

func removeLinks(ctx context.Context, p Paths) error {
	var errs []error
	for _, name := range labLinks(p) {
		// A pair's end vanishes together with the pod's network namespace, perhaps right now.
		if _, err := run(ctx, "", "/sbin/ip", "link", "delete", name); err != nil && linkExists(name) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// natRules returns the nat table, empty without tools to read it, and so without rules of a lab.
func natRules(ctx context.Context) string {
	path, err := exec.LookPath("/usr/sbin/iptables-save")
	if err != nil {
		return ""
	}
	out, err := run(ctx, "", path, "-t", "nat")
	if err != nil {
		return ""
	}
	return string(out)
}

func portmapPresent(ctx context.Context) bool {
	return strings.Contains(natRules(ctx), ":CNI-HOSTPORT-")
}

func removePortmap(ctx context.Context, keepTop bool) error {
	script := portmapRemoval(natRules(ctx), keepTop)
	if script == "" {
		return nil
	}
	_, err := run(ctx, script, "/usr/sbin/iptables-restore", "--noflush", "--wait")
	return err
}

// portmapRemoval turns the output of iptables-save into the input of iptables-restore that removes the portmap plugin's
// objects for the lab's network: each pod's chain and the rules that lead to it. The chains above them belong to the
// machine, and are removed only if the lab was the first to need them and they have no other rules now.
func portmapRemoval(save string, keepTop bool) string {
	var rules, chains []string
	others := false
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		chain := target(line)
		if !strings.HasPrefix(line, "-A ") || !strings.HasPrefix(chain, "CNI-DN-") {
			continue
		}
		if !strings.Contains(line, `name: \"`+Network+`\"`) {
			others = true
			continue
		}
		rules = append(rules, "-D "+strings.TrimPrefix(line, "-A "), "-F "+chain)
		if !slices.Contains(chains, "-X "+chain) { // one rule for each protocol leads to it
			chains = append(chains, "-X "+chain)
		}
	}
	if !keepTop && !others {
		topRules, topChains := portmapTop(save)
		rules, chains = append(rules, topRules...), append(chains, topChains...)
	}
	if len(chains) == 0 {
		return ""
	}
	// Two transactions: within one, the kernel still counts the rules that lead to a chain.
	return "*nat\n" + strings.Join(rules, "\n") + "\nCOMMIT\n*nat\n" + strings.Join(chains, "\n") + "\nCOMMIT\n"
}

// portmapTop removes the chains that all networks share.
func portmapTop(save string) (rules, chains []string) {
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "-A ") && !strings.HasPrefix(line, "-A CNI-") &&
			strings.HasPrefix(target(line), "CNI-HOSTPORT-") {
			rules = append(rules, "-D "+strings.TrimPrefix(line, "-A "))
		}
		if name, _, _ := strings.Cut(strings.TrimPrefix(line, ":"), " "); strings.HasPrefix(line, ":CNI-HOSTPORT-") {
			rules, chains = append(rules, "-F "+name), append(chains, "-X "+name)
		}
	}
	return rules, chains
}

// target is the chain that a rule jumps to.
func target(rule string) string {
	fields := strings.Fields(rule)
	for i, field := range fields {
		if field == "-j" && i+1 < len(fields) {
			return fields[i+1]
		}
	}
	return ""
}
