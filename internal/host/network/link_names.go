package network

import (
	"slices"
	"strings"
)

// PluginOfLink returns the network plugin that names the host's end of a pod's veth pair so; empty for other names. It
// is for users: a name proves nothing. Those of Calico, AWS and Azure are a digest of the pod's namespace and name, which
// a re-created pod has again.
func PluginOfLink(link string) string {
	for _, of := range []struct {
		plugin, prefix string
		digits         []int // hexadecimal, after the prefix
	}{
		{"Calico", "cali", []int{11}}, {"AWS VPC CNI", "eni", []int{11}}, {"Azure CNI", "azv", []int{11}},
		{"Cilium", "lxc", []int{11, 12}}, {"bridge or flannel", "veth", []int{8}},
	} {
		digits, ok := strings.CutPrefix(link, of.prefix)
		if ok && slices.Contains(of.digits, len(digits)) && strings.Trim(digits, "0123456789abcdef") == "" {
			return of.plugin
		}
	}
	return ""
}
