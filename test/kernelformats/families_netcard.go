package main

// givesUp selects the reports of a driver that gives up on its device, or resets it.
const givesUp = `time[sd]?[- ]?out|timed out|\bhang|\bhung|stuck|lock-?up|unrecoverable|surprise|\bdead\b|giv(e|ing) up|gave up|` +
	`over ?heat|over ?temp|thermal|not respond|no response|unresponsive|health|crash|assert|internal err|parity|fatal|` +
	`(adapter|device|card|nic|controller|port|host|disk|drive) (was |is |has been |unexpectedly )?(removed|lost|gone|disabled|stopped|failed|offline)|` +
	`(reset|recover\w*|rebuild|re-?init\w*|restart\w*|resume) \S*\s?\S*\s?(fail|unsuccess|abort)|fail\w* (to |in )?(the )?(reset|recover|rebuild|re-?init|restart)|` +
	`initiat\w+ (a )?reset|resetting|reset (adapter|device|controller)|nvm checksum|eeprom checksum|checksum is not valid|link (is )?(down|lost)|` +
	`keep.?alive|watchdog|pcie? (link|error)|hardware (error|fail)|firmware error|unavailable|_one failed|catastrophic|link failed`

// networkCardFamilies are the drivers of the network cards that servers have.
func networkCardFamilies() []family {
	const ethernet = "drivers/net/ethernet/"
	intel := map[string]string{}
	for _, level := range levels {
		intel["e_"+level] = "{mod} {pci} {eth}: "
		intel["e_dev_"+level] = "{mod} {pci}: "
		intel["hw_"+level] = "{mod} {pci} {eth}: "
	}
	mellanox := map[string]string{}
	for _, level := range levels {
		mellanox["mlx4_"+level] = "mlx4_core {pci}: "
		mellanox["en_"+level] = "mlx4_en: {eth}: "
		mellanox["mlx5_core_"+level] = "mlx5_core {pci}: %s:%d:(pid %d): "
		mellanox["mlx5_core_"+level+"_rl"] = "mlx5_core {pci}: %s:%d:(pid %d): "
	}
	return []family{{
		name: "nic-intel",
		files: []string{ethernet + "intel/e1000e/netdev.c", ethernet + "intel/igb/igb_main.c",
			ethernet + "intel/igc/igc_main.c", ethernet + "intel/ixgbe/ixgbe_main.c",
			ethernet + "intel/ixgbevf/ixgbevf_main.c",
			ethernet + "intel/i40e/i40e_main.c", ethernet + "intel/iavf/iavf_main.c",
			ethernet + "intel/ice/ice_main.c",
			ethernet + "intel/e1000e/e1000.h", ethernet + "intel/ixgbe/ixgbe_common.h"},
		words:    givesUp,
		printers: intel,
	}, {
		name: "nic-mellanox",
		files: []string{ethernet + "mellanox/mlx4/catas.c", ethernet + "mellanox/mlx4/main.c",
			ethernet + "mellanox/mlx4/cmd.c", ethernet + "mellanox/mlx4/reset.c", ethernet + "mellanox/mlx4/eq.c",
			ethernet + "mellanox/mlx4/en_*.c", ethernet + "mellanox/mlx5/core/health.c",
			ethernet + "mellanox/mlx5/core/main.c",
			ethernet + "mellanox/mlx5/core/cmd.c", ethernet + "mellanox/mlx5/core/fw*.c",
			ethernet + "mellanox/mlx5/core/events.c", ethernet + "mellanox/mlx5/core/eq.c",
			ethernet + "mellanox/mlx5/core/en_main.c", ethernet + "mellanox/mlx5/core/en/reporter_*.c",
			ethernet + "mellanox/mlx5/core/en/health.c", ethernet + "mellanox/mlx5/core/port.c"},
		words:    givesUp,
		printers: mellanox,
	}, {
		name: "nic-broadcom",
		files: []string{ethernet + "broadcom/bnxt/bnxt.c", ethernet + "broadcom/bnxt/bnxt_devlink.c",
			ethernet + "broadcom/bnxt/bnxt_hwrm.c", ethernet + "broadcom/bnx2x/bnx2x_main.c",
			ethernet + "broadcom/bnx2x/bnx2x_cmn.c", ethernet + "broadcom/bnx2.c", ethernet + "broadcom/tg3.c"},
		words:    givesUp,
		printers: map[string]string{"BNX2X_ERR": "bnx2x: [bnx2x_function:123({eth})]"},
	}, {
		name: "nic-qlogic",
		files: []string{ethernet + "qlogic/qede/qede_main.c", ethernet + "qlogic/qed/qed_mcp.c",
			ethernet + "qlogic/qed/qed_int.c", ethernet + "qlogic/qed/qed_main.c"},
		words: givesUp,
		printers: map[string]string{"DP_NOTICE": "[{mod}_function:123({eth})]",
			"DP_ERR": "[{mod}_function:123({eth})]", "DP_INFO": "[{mod}_function:123({eth})]"},
	}, {
		name: "nic-cloud",
		files: []string{ethernet + "amazon/ena/ena_netdev.c", ethernet + "amazon/ena/ena_com.c",
			ethernet + "google/gve/*.c",
			ethernet + "microsoft/mana/*.c", "drivers/net/virtio_net.c", "drivers/net/hyperv/netvsc*.c",
			"drivers/net/hyperv/rndis_filter.c", "drivers/net/vmxnet3/vmxnet3_drv.c", "drivers/net/xen-netfront.c"},
		words: givesUp,
	}, {
		name: "nic-other",
		files: []string{ethernet + "chelsio/cxgb4/cxgb4_main.c", ethernet + "chelsio/cxgb4/t4_hw.c",
			ethernet + "chelsio/cxgb4/sge.c", ethernet + "netronome/nfp/nfp_main.c",
			ethernet + "netronome/nfp/nfp_net_common.c",
			ethernet + "netronome/nfp/nfpcore/nfp6000_pcie.c",
			ethernet + "emulex/benet/be_main.c", ethernet + "realtek/r8169_main.c"},
		words: givesUp,
		printers: map[string]string{"CH_WARN": "cxgb4 {pci}: ", "CH_ALERT": "cxgb4 {pci}: ",
			"CH_ERR":  "cxgb4 {pci}: ",
			"nfp_err": "nfp {pci}: ", "nfp_warn": "nfp {pci}: ", "nn_err": "nfp {pci} {eth}: ",
			"nn_warn": "nfp {pci} {eth}: ", "nn_dp_warn": "nfp {pci} {eth}: "},
	}, {
		name: "nic-hns3", driver: "hns3",
		files: []string{ethernet + "hisilicon/hns3/hns3_enet.c", ethernet + "hisilicon/hns3/hns3pf/hclge_main.c",
			ethernet + "hisilicon/hns3/hns3pf/hclge_err.c"},
		words: givesUp,
	}, {
		name: "net-core", driver: "ice", printers: map[string]string{"WARN_ONCE": ""},
		files: []string{"net/sched/sch_generic.c", "net/core/dev.c", "net/netfilter/nf_conntrack_core.c",
			"net/netfilter/nf_conntrack_expect.c", "net/core/neighbour.c", "net/ipv4/tcp*.c", "net/ipv6/addrconf.c",
			"net/ipv4/route.c", "net/core/dst.c"},
		words: `watchdog|timed out|table full|overflow|cache is full|out of memory|orphaned|syn flood|waiting for|duplicate|hw csum`,
	}}
}
