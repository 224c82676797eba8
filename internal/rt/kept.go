package rt

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"tenon.dev/internal/disk"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/knob"
)

// keptImages returns the folder that the environment names for kernels, or nil.
func keptImages() *disk.Folder {
	dir := knob.KernelCache.Get()
	switch dir {
	case "off":
		return nil
	case "":
		user, err := os.UserCacheDir()
		if err != nil { // there is no home
			return nil
		}
		dir = filepath.Join(user, "tenon", "kernels")
	}
	if disk.Build() == "" {
		return nil
	}
	return disk.Open(dir, int64(knob.KernelCacheMiB.Get())<<20)
}

// keptKey returns everything that the image of s depends on. The driver's version is not part of it: the text does not depend on it, and
// the driver itself caches the machine code that it makes of the text.
func (d *Device) keptKey(s *kernels.Spec) string {
	if d.kept == nil {
		return ""
	}
	return fmt.Sprintf("kernel\n%v\n%v %+v\n%v", disk.Build(), d.info.Image, d.target(), s.Key())
}

// keptImage returns an image of an earlier run.
func (d *Device) keptImage(key string) (im image, ok bool) {
	all, ok := d.kept.Get(key)
	if !ok {
		return im, false
	}
	head, text, _ := bytes.Cut(all, []byte("\n"))
	im.text = text
	_, err := fmt.Sscan(string(head), &im.name, &im.shared, &im.asserts, &im.dynamic)
	return im, err == nil
}

// keep keeps an image for later runs.
func (d *Device) keep(key string, im image) {
	d.kept.Put(key, append(fmt.Appendln(nil, im.name, im.shared, im.asserts, im.dynamic), im.text...))
}
