package network

import "testing"

func TestPluginOfLink(t *testing.T) {
	for link, want := range map[string]string{
		"cali0123456789a": "Calico", "calico_tmp_A": "", "enia1b2c3d4e5f": "AWS VPC CNI", "eni0": "",
		"lxc12ab34cd56ef": "Cilium", "lxcbr0": "", "azv12345678901": "Azure CNI",
		"veth1a2b3c4d": "bridge or flannel", "vethmine": "", "eth0": "", "": "",
	} {
		if got := PluginOfLink(link); got != want {
			t.Errorf("%s: %q, want %q", link, got, want)
		}
	}
}
