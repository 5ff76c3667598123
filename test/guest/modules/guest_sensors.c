// SPDX-License-Identifier: GPL-2.0
/*
 * A board with a fan, a temperature sensor, a thermal zone that the kernel shuts the machine down for, a mains supply and a
 * UPS. The parameters are what they say.
 *
 * https://docs.kernel.org/hwmon/hwmon-kernel-api.html, https://docs.kernel.org/driver-api/thermal/sysfs-api.html,
 * https://docs.kernel.org/power/power_supply_class.html
 */
#include <linux/err.h>
#include <linux/hwmon.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/power_supply.h>
#include <linux/thermal.h>

#define CRITICAL 100000 /* thousandths of a degree */

static int fan_alarm, fan_fault, temp_crit_alarm, temp_fault;
static int zone_temp = 40000; /* thousandths of a degree */
static int mains_online = 1, ups_status = POWER_SUPPLY_STATUS_FULL, ups_health = POWER_SUPPLY_HEALTH_GOOD;
module_param(fan_alarm, int, 0644);
module_param(fan_fault, int, 0644);
module_param(temp_crit_alarm, int, 0644);
module_param(temp_fault, int, 0644);
module_param(zone_temp, int, 0644);
module_param(mains_online, int, 0644);
module_param(ups_status, int, 0644);
module_param(ups_health, int, 0644);

static umode_t chip_visible(const void *data, enum hwmon_sensor_types type, u32 attr, int channel)
{
	return 0444;
}

static int chip_read(struct device *dev, enum hwmon_sensor_types type, u32 attr, int channel, long *value)
{
	if (type == hwmon_fan)
		*value = attr == hwmon_fan_alarm ? fan_alarm : attr == hwmon_fan_fault ? fan_fault : 1200;
	else
		*value = attr == hwmon_temp_crit_alarm ? temp_crit_alarm : attr == hwmon_temp_fault ? temp_fault :
			 attr == hwmon_temp_crit ? CRITICAL : 40000;
	return 0;
}

static int chip_read_string(struct device *dev, enum hwmon_sensor_types type, u32 attr, int channel, const char **text)
{
	*text = type == hwmon_fan ? "CPU Fan" : "Board";
	return 0;
}

static const struct hwmon_ops chip_ops = { .is_visible = chip_visible, .read = chip_read, .read_string = chip_read_string };
static const struct hwmon_channel_info *chip_channels[] = {
	HWMON_CHANNEL_INFO(fan, HWMON_F_INPUT | HWMON_F_ALARM | HWMON_F_FAULT | HWMON_F_LABEL),
	HWMON_CHANNEL_INFO(temp, HWMON_T_INPUT | HWMON_T_CRIT | HWMON_T_CRIT_ALARM | HWMON_T_FAULT | HWMON_T_LABEL),
	NULL
};
static const struct hwmon_chip_info chip = { .ops = &chip_ops, .info = chip_channels };

static int zone_get_temp(struct thermal_zone_device *tz, int *temp)
{
	*temp = zone_temp;
	return 0;
}

static int zone_trip_type(struct thermal_zone_device *tz, int trip, enum thermal_trip_type *type)
{
	*type = THERMAL_TRIP_CRITICAL;
	return 0;
}

static int zone_trip_temp(struct thermal_zone_device *tz, int trip, int *temp)
{
	*temp = CRITICAL;
	return 0;
}

static struct thermal_zone_device_ops zone_ops = {
	.get_temp = zone_get_temp, .get_trip_type = zone_trip_type, .get_trip_temp = zone_trip_temp,
};
static struct thermal_zone_device *zone;

static int supply_get(struct power_supply *supply, enum power_supply_property property, union power_supply_propval *value)
{
	value->intval = property == POWER_SUPPLY_PROP_ONLINE ? mains_online : property == POWER_SUPPLY_PROP_STATUS ? ups_status : ups_health;
	return 0;
}

static const enum power_supply_property mains_properties[] = { POWER_SUPPLY_PROP_ONLINE };
static const enum power_supply_property ups_properties[] = { POWER_SUPPLY_PROP_STATUS, POWER_SUPPLY_PROP_HEALTH };
static const struct power_supply_desc mains = {
	.name = "guest_mains", .type = POWER_SUPPLY_TYPE_MAINS, .get_property = supply_get,
	.properties = mains_properties, .num_properties = ARRAY_SIZE(mains_properties),
};
static const struct power_supply_desc ups = {
	.name = "guest_ups", .type = POWER_SUPPLY_TYPE_UPS, .get_property = supply_get,
	.properties = ups_properties, .num_properties = ARRAY_SIZE(ups_properties),
};

static int probe(struct platform_device *device)
{
	struct device *dev = &device->dev;
	void *made;

	made = devm_hwmon_device_register_with_info(dev, "guest", NULL, &chip, NULL);
	if (IS_ERR(made))
		return PTR_ERR(made);
	made = devm_power_supply_register(dev, &mains, NULL);
	if (IS_ERR(made))
		return PTR_ERR(made);
	made = devm_power_supply_register(dev, &ups, NULL);
	if (IS_ERR(made))
		return PTR_ERR(made);
	zone = thermal_zone_device_register("guest_zone", 1, 0, NULL, &zone_ops, NULL, 0, 500);
	if (IS_ERR(zone))
		return PTR_ERR(zone);
	return thermal_zone_device_enable(zone);
}

static int remove(struct platform_device *device)
{
	thermal_zone_device_unregister(zone);
	return 0;
}

static struct platform_driver driver = { .driver = { .name = "guest_sensors" }, .probe = probe, .remove = remove };
static struct platform_device *board;

static int __init guest_sensors_init(void)
{
	board = platform_create_bundle(&driver, probe, NULL, 0, NULL, 0);
	return PTR_ERR_OR_ZERO(board);
}

static void __exit guest_sensors_exit(void)
{
	platform_device_unregister(board);
	platform_driver_unregister(&driver);
}

module_init(guest_sensors_init);
module_exit(guest_sensors_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Sensors and power supplies that show what a test sets");
