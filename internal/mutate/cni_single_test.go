package mutate

import "testing"

// Multus accepts the configuration of a single plugin, and libcni reads that as a list without plugins: a DEL with it
// would run no plugin and remove the cache file, which is the only record of the address.
func TestNetworkOfASinglePlugin(t *testing.T) {
	list, err := networkOf(cached{NetworkName: "storage", Config: []byte(`{"cniVersion":"1.0.0","name":"storage",` +
		`"type":"ptp","ipam":{"type":"host-local","subnet":"10.250.9.0/24"}}`)})
	if err != nil || len(list.Plugins) != 1 || list.Plugins[0].Network.Type != "ptp" {
		t.Errorf("network %+v, %v", list, err)
	}
}
