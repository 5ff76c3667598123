// SPDX-License-Identifier: GPL-2.0
/*
 * A network card, guest0, that drops what it is given and counts what a test sets. Written to "stuck", it does not send
 * any more; to "hold", something in the kernel keeps it for so many seconds.
 *
 * https://docs.kernel.org/networking/netdevices.html
 */
#include <linux/err.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/workqueue.h>

static struct net_device *card;
static int speed = 10000; /* Mbit/s */
static int full_duplex = 1;
static int stuck;
static ulong rx_packets, rx_crc_errors, rx_dropped, tx_packets, tx_carrier_errors, tx_dropped;
module_param(speed, int, 0644);
module_param(full_duplex, int, 0644);
module_param(stuck, int, 0644);
module_param(rx_packets, ulong, 0644);
module_param(rx_crc_errors, ulong, 0644);
module_param(rx_dropped, ulong, 0644);
module_param(tx_packets, ulong, 0644);
module_param(tx_carrier_errors, ulong, 0644);
module_param(tx_dropped, ulong, 0644);

static int set_carrier(const char *text, const struct kernel_param *kp)
{
	bool on;
	int err = kstrtobool(text, &on);

	if (err || !card)
		return err;
	if (on)
		netif_carrier_on(card);
	else
		netif_carrier_off(card);
	return 0;
}

static void let_go(struct work_struct *work)
{
	dev_put(card);
}

static DECLARE_DELAYED_WORK(hold_work, let_go);

static int set_hold(const char *text, const struct kernel_param *kp)
{
	unsigned int seconds;
	int err = kstrtouint(text, 10, &seconds);

	if (err || !card)
		return err;
	dev_hold(card);
	schedule_delayed_work(&hold_work, seconds * HZ);
	return 0;
}

static const struct kernel_param_ops carrier_ops = { .set = set_carrier };
static const struct kernel_param_ops hold_ops = { .set = set_hold };
module_param_cb(carrier, &carrier_ops, NULL, 0200);
module_param_cb(hold, &hold_ops, NULL, 0200);

static netdev_tx_t card_xmit(struct sk_buff *skb, struct net_device *dev)
{
	if (stuck)
		netif_stop_queue(dev);
	else
		tx_packets++;
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static void card_timeout(struct net_device *dev, unsigned int queue)
{
	netdev_warn(dev, "the queue is reset\n");
	netif_wake_queue(dev);
}

static void card_stats(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	stats->rx_packets = rx_packets;
	stats->rx_errors = stats->rx_crc_errors = rx_crc_errors;
	stats->rx_dropped = rx_dropped;
	stats->tx_packets = tx_packets;
	stats->tx_errors = stats->tx_carrier_errors = tx_carrier_errors;
	stats->tx_dropped = tx_dropped;
}

static const struct net_device_ops card_ops = {
	.ndo_start_xmit = card_xmit, .ndo_tx_timeout = card_timeout, .ndo_get_stats64 = card_stats,
	.ndo_set_mac_address = eth_mac_addr, .ndo_validate_addr = eth_validate_addr,
};

static int card_settings(struct net_device *dev, struct ethtool_link_ksettings *settings)
{
	settings->base.speed = netif_carrier_ok(dev) ? speed : SPEED_UNKNOWN;
	settings->base.duplex = full_duplex ? DUPLEX_FULL : DUPLEX_HALF;
	return 0;
}

static const struct ethtool_ops card_ethtool = { .get_link = ethtool_op_get_link, .get_link_ksettings = card_settings };

static int probe(struct platform_device *device)
{
	int err;

	card = alloc_etherdev(0);
	if (!card)
		return -ENOMEM;
	strscpy(card->name, "guest0", IFNAMSIZ);
	SET_NETDEV_DEV(card, &device->dev);
	card->netdev_ops = &card_ops;
	card->ethtool_ops = &card_ethtool;
	card->watchdog_timeo = HZ;
	eth_hw_addr_random(card);
	netif_carrier_off(card);
	err = register_netdev(card);
	if (err)
		free_netdev(card);
	return err;
}

static int remove(struct platform_device *device)
{
	unregister_netdev(card);
	flush_delayed_work(&hold_work);
	free_netdev(card);
	return 0;
}

static struct platform_driver driver = { .driver = { .name = "guest_card" }, .probe = probe, .remove = remove };
static struct platform_device *slot;

static int __init guest_card_init(void)
{
	slot = platform_create_bundle(&driver, probe, NULL, 0, NULL, 0);
	return PTR_ERR_OR_ZERO(slot);
}

static void __exit guest_card_exit(void)
{
	platform_device_unregister(slot);
	platform_driver_unregister(&driver);
}

module_init(guest_card_init);
module_exit(guest_card_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("A network card that fails on request, for tests");
