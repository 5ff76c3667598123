package main

import "slices"

// families lists the families to extract. A new one needs an entry here, a run of the generator, and a verdict for each
// format in its file.
func families() []family {
	return slices.Concat(coreFamilies(), networkCardFamilies(), storageFamilies(), hardwareFamilies(),
		netfsFamilies(), filesystemFamilies(), sweepFamilies())
}
