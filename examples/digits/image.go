package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"tenon.dev/data"
)

// embedded holds the images; README.md says whose they are.
//
//go:embed digits.csv.gz
var embedded []byte

const (
	side    = 8 // of an image, in pixels
	deepest = 16
)

// image is one handwritten digit.
type image struct {
	pixels [side * side]float32 // from 0 to 1
	label  int64                // 0 to 9
}

// load reads the named file, or the embedded one.
func load(name string) ([]image, error) {
	var in io.Reader = bytes.NewReader(embedded)
	if name == "" {
		name = "the embedded file"
	} else {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("the images cannot be read: %w", err)
		}
		defer f.Close()
		in = f
	}
	buffered := bufio.NewReader(in)
	in = buffered
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("%s begins like a compressed file but is none: %w", name, err)
		}
		in = z
	}
	var images []image
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		img, err := parseImage(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, len(images)+1, err)
		}
		images = append(images, img)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s, after line %d: %w", name, len(images), err)
	}
	if len(images) < 5 {
		return nil, fmt.Errorf("%s holds %d images; give at least 5, so that one is for the test", name, len(images))
	}
	return images, nil
}

func parseImage(line string) (image, error) {
	var img image
	fields := strings.Split(strings.TrimSuffix(line, "\r"), ",")
	if len(fields) != len(img.pixels)+1 {
		return img, fmt.Errorf("there are %d values; a line has %d pixels and a label", len(fields), len(img.pixels))
	}
	for i, text := range fields {
		most, what := deepest, "pixel"
		if i == len(img.pixels) {
			most, what = 9, "label"
		}
		v, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return img, fmt.Errorf("value %d, %q, is no whole number", i+1, text)
		}
		if err != nil || v < 0 || v > most {
			return img, fmt.Errorf("value %d, %s, is no %s from 0 to %d", i+1, text, what, most)
		}
		if i < len(img.pixels) {
			img.pixels[i] = float32(v) / deepest
		} else {
			img.label = int64(v)
		}
	}
	return img, nil
}

// split takes every fifth image for the test.
func split(images []image) (train, test []image) {
	for i, img := range images {
		if i%5 == 4 {
			test = append(test, img)
		} else {
			train = append(train, img)
		}
	}
	return train, test
}

// shuffleLabels gives the images each other's labels.
func shuffleLabels(images []image, seed uint64) {
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(images), func(i, j int) {
		images[i].label, images[j].label = images[j].label, images[i].label
	})
}

// columns returns the pixels and labels of all images.
func columns(images []image) (pixels []float32, labels []int64) {
	for _, img := range images {
		pixels = append(pixels, img.pixels[:]...)
		labels = append(labels, img.label)
	}
	return pixels, labels
}

// table makes a data set of the images.
func table(images []image) (*data.Table, error) {
	pixels, labels := columns(images)
	return data.NewTable(data.NewColumn(pixels, 1, side, side), data.NewColumn(labels))
}
