// SPDX-License-Identifier: Apache-2.0
// Described datasets: their descriptions, the location of their files, opening, fetching and
// verifying. A format (data/format.h) reads the files; this has what formats share.
#pragma once

#include <set>
#include <string_view>

#include "moesaic/base/retry.h"
#include "moesaic/config/schema.h"
#include "moesaic/data/dataset.h"
#include "moesaic/data/derived.h"

namespace moesaic {

/// One file of a dataset. Size and hash are those of its uncompressed bytes; a file that comes in
/// an archive may have no hash of its own.
struct DatasetFile {
  std::string name, sha256;
  int64_t size = 0;
};

void describe(auto& f, DatasetFile& c) {
  f("name", c.name, "file name without .gz", required);
  f("sha256", c.sha256, "checksum (SHA-256) of the unpacked bytes; empty: unknown");
  f("size", c.size, "number of unpacked bytes", required, at_least(0));
}

/// Checks what the checks of single settings do not: the form of name and hash.
std::string config_problem(const DatasetFile& file);

/// An archive with a dataset's files.
struct DatasetArchive {
  std::string name, folder, md5, sha256;
  int64_t max_size = 0;
};

void describe(auto& f, DatasetArchive& c) {
  f("name", c.name, "file name of the archive, relative to the URLs", required);
  f("folder", c.folder, "folder in the archive that holds the files", required);
  f("md5", c.md5, "checksum (MD5) of the archive, used without sha256; empty: none");
  f("sha256", c.sha256, "checksum (SHA-256) of the archive; empty: md5");
  f("max_size", c.max_size, "largest size in bytes of the archive, and of its content", required,
    at_least(1));
}

/// Checks the form of names and hashes; one hash is required.
std::string config_problem(const DatasetArchive& archive);

/// Description of a dataset, `datasets/NAME.json`: of files (format with its settings, classes,
/// mean, std, files), or of a dataset derived from a base: rotated images, mosaics, images on
/// backdrops, the first images, some classes, or another validation split.
struct DatasetSpec {
  std::string name, description;
  NamedSettings format;  ///< One of dataset_formats(), with its settings.
  std::vector<std::string> classes;
  std::vector<double> mean, std;
  std::map<std::string, int64_t> num_images;  ///< Number by stored split, where it is known.
  std::map<std::string, DatasetFile> files;   ///< Files by role, as the format names them.
  std::optional<DatasetArchive> archive;
  std::vector<std::string> urls;  ///< Folders on the web with FILE.gz, tried in order.
  std::string token_env;
  std::string debian_package;
  std::string folder;  ///< Name below the searched folders; empty: the dataset's name.
  std::vector<std::string> paths;
  /// Whether photos are turned as EXIF says, in place of the base's setting; unset: they are.
  std::optional<bool> exif_orientation;
  std::optional<double> validation;  ///< Fraction of training files; unset is the base's or none.
  std::string base;
  std::vector<std::string> keep_classes;
  std::map<std::string, int64_t> num_first_images;  ///< Number of first images, by split.
  std::optional<RotateConfig> rotate;
  std::optional<MosaicConfig> mosaic;
  std::optional<BackdropConfig> backdrop;
  std::string spec_folder;  ///< Folder of the description's file, absolute; no setting.

  /// Returns whether the dataset is generated when it is opened and has no files.
  bool is_generated() const;
  /// Returns whether this is a folder of images without a description, named by its path.
  bool is_path() const { return name.find('/') != std::string::npos; }
  /// Returns the splits that are stored separately: train, test and, where the format or the
  /// description has one, validation.
  std::vector<std::string> stored_splits() const;
  /// Returns the folders that are searched for the files, in order: the paths that begin with ./,
  /// `$MOESAIC_DATA/FOLDER`, `datasets/cache/FOLDER`, the other paths, beside the description and
  /// then below resource_root(); with an archive also the archive's folder within each of them and
  /// within $MOESAIC_DATA itself.
  std::vector<fs::path> search_folders() const;
  /// Returns the folder for fetched files: the first of search_folders() that is not relative to
  /// the description, for an archive its folder there.
  fs::path fetch_folder() const;
  /// Returns the first search folder with the files of the stored `split`, or with every file where
  /// `split` is empty; empty if there is none.
  fs::path find_folder(std::string_view split = {}) const;
};

/// Returns every registered format with its default settings; the first, idx, is the default.
std::vector<NamedSettings> dataset_format_choices();

void describe(auto& f, DatasetSpec& c) {
  f("name", c.name, "name of the dataset, as in the file name", required);
  f("description", c.description, "one-line description for lists; empty: none");
  f.choice("format", c.format, dataset_format_choices(),
           "file format of the data, or the generator that makes them");
  f("classes", c.classes,
    "names of the classes in the order of their labels; empty: for image_folder the sorted names "
    "of the train split's folders");
  f("num_images", c.num_images,
    "number of images of each split, for plans made before the files are fetched; empty: unknown",
    at_least(1), renamed_from("images"));
  f("mean", c.mean,
    "mean of each channel, of pixels scaled to [0, 1]; empty: for image_folder and shards that of "
    "ImageNet");
  f("std", c.std,
    "standard deviation of each channel, of pixels scaled to [0, 1]; empty: for image_folder and "
    "shards that of ImageNet",
    above(0));
  f("files", c.files,
    "files by role, a name such as train_images; idx: train_images, train_labels, test_images, "
    "test_labels; cifar: train_1, train_2, ..., test_1; empty: for other formats, or with base");
  f("archive", c.archive, "archive that contains the files; null: none");
  f("urls", c.urls,
    "web folders, or hf://OWNER/NAME[@REVISION], that hold the archive, or else the files with .gz "
    "appended; shards: the files themselves; empty: none");
  f("token_env", c.token_env,
    "environment variable, NAME_TOKEN, whose value is sent to the hosts of urls as bearer token; "
    "empty: HF_TOKEN for hf://, none for others");
  f("debian_package", c.debian_package, "name of the Debian package with the files; empty: none");
  f("folder", c.folder,
    "name of the files' folder in $MOESAIC_DATA and datasets/cache; empty: the dataset's name");
  f("paths", c.paths,
    "further folders to search, relative to this description, or else to the folder that holds "
    "datasets/; one that begins with ./ is searched first; empty: none");
  f("exif_orientation", c.exif_orientation,
    "rotation of photos by their EXIF orientation, as viewers show them; false: pixels as stored, "
    "as in google-research/vmoe; null: true, or with 'base' the base's setting");
  f("validation", c.validation,
    "fraction of the training files held out as the validation split: the last ones, for "
    "image_folder the last of each class; 0: none; null: 0, or with 'base' the base's setting",
    between(0.0, 0.9));
  f("base", c.base,
    "dataset from which this one is derived by keep_classes, num_first_images, rotate, "
    "mosaic or backdrop; a path may be relative to this description; empty: none");
  f("keep_classes", c.keep_classes,
    "classes of a subset of the base, in the order of the new labels; empty: all");
  f("num_first_images", c.num_first_images,
    "number of images per split of a subset of the base: the first ones; missing splits: all; "
    "empty: all of every split",
    at_least(1), renamed_from("first"));
  f("rotate", c.rotate,
    "task of telling rotated images of the base from unrotated ones; the base's classes become "
    "groups; null: none");
  f("mosaic", c.mosaic, "mosaics of the base's images, one of which decides the class; null: none");
  f("backdrop", c.backdrop,
    "shrunk images of the base, each at a random position in another image; null: none");
}

/// Checks which settings go together: a dataset with a base has no files, any other one has what
/// its format requires.
ConfigProblem config_problem(const DatasetSpec& spec);

/// Returns the names of the described datasets, sorted.
std::vector<std::string> dataset_names();

/// Returns whether there is a description, or a folder, of that name; a name without a slash that
/// does not end in .json is never a path.
bool has_spec(const std::string& name);

/// Returns the name by which a dataset is found from any working directory: a path that exists
/// becomes absolute.
std::string absolute_name(const std::string& name);

/// Returns the name of a dataset, or of its last folder or description where it is a path, which
/// would reveal where a user keeps files.
std::string name_without_folders(const std::string& name);

/// Reads `datasets/NAME.json`. A name that ends in .json is the path of another description. A name
/// with a slash is a folder: of the one description that it holds, such as packed shards, or else
/// of images (image_folder) without a description. Throws Error (usage) for an unknown name or an
/// invalid description.
DatasetSpec load_dataset_spec(std::string_view name);

/// Options of a fetch.
struct FetchOptions {
  bool show_progress = true;        ///< Draws a progress bar on standard error.
  SleepFunction pause = sleep_for;  ///< Waits between two tries, see FetchRequest.
};

/// What a fetch found and downloaded.
struct FetchResult {
  fs::path folder;  ///< Folder with every file (the base's); empty without.
  /// Names of the downloaded files; empty if all were there already.
  std::vector<std::string> fetched;
  /// Names of the files, there or downloaded, of which no hash is described: unlike the others they
  /// are not verified, only compared by what is described.
  std::vector<std::string> unhashed = {};
};

/// Result of comparing one file of a dataset with its description.
struct FileVerification {
  std::string name;             ///< Name in the description, without .gz.
  fs::path path;                ///< Empty where the file is missing.
  std::string problem;          ///< One line; empty where the file is right.
  std::string unverified = {};  ///< Properties that could not be compared; empty: none.
  /// Returns whether the file is as described.
  bool ok() const { return problem.empty(); }
};

/// A described dataset, together with those that it is made of. Splits are those of splits(), or
/// "train+validation", the training split without held-out images; for any other one the functions
/// throw Error (usage).
class DatasetSource {
 public:
  /// Reads descriptions as load_dataset_spec() does. Throws Error (usage) also for a cycle of
  /// bases.
  explicit DatasetSource(std::string_view name) : DatasetSource(name, name, 0) {}

  /// Returns the description itself.
  const DatasetSpec& spec() const { return spec_; }
  /// Returns the description with the files: for a derived dataset that of its innermost base.
  const DatasetSpec& base() const { return base_ ? base_->base() : spec_; }
  /// Returns the descriptions of all files that the dataset is made of: base(), then those of its
  /// backdrops, of which the train split is used.
  std::vector<DatasetSpec> files() const;
  /// Returns the fraction of the training files that is held out for validation: its own setting,
  /// or else that of the nearest base that has one; 0 for none.
  double validation() const;
  /// Returns the splits: train, validation (where one is stored or held out) and test.
  std::vector<std::string> splits() const;
  /// Returns the number of classes in the descriptions; 0 means unknown or none.
  int64_t num_classes() const;
  /// Returns the first of files() that is to be fetched: one that is not here, else base().
  DatasetSpec spec_to_fetch() const;
  /// Returns the folder of its files, or "not here; " and how to get them.
  std::string where() const;

  /// Opens a split. Small images are loaded into memory; of folders of images only the list of
  /// files is. Throws Error (failure) for files that are missing (the message says how to get
  /// them), damaged, or inconsistent.
  std::shared_ptr<const Dataset> open(std::string_view split) const;
  /// Returns what of a split's files is not here, as "folder 'val' is", or "".
  std::string missing_files(std::string_view split) const;
  /// Returns whether the description gives the size of a split, that of some classes by their
  /// number.
  bool has_metadata(std::string_view split) const;
  /// Opens a split for planning by the description only, without files: classes, shape and size (of
  /// some classes about) are right, images cannot be read. Throws Error (usage) if it lacks one.
  std::shared_ptr<const Dataset> open_metadata(std::string_view split) const;

  /// Downloads all files() to their fetch_folder(), unless a verified copy is found: each as by
  /// fetch_file(), compared with the description by the SHA-256 of its uncompressed bytes. An
  /// archive is compared by its own SHA-256 or MD5, unpacked to a temporary folder and moved as a
  /// whole, with a list of the files' SHA-256. A file or a folder that is there and
  /// is not what is described is set aside under a name that is printed, never removed. URLs are
  /// tried in order. Throws Error (failure) with the URL and the reason of every try.
  FetchResult fetch(const FetchOptions& options = {}) const;
  /// Compares size and SHA-256 of the uncompressed bytes of every one of files() with the
  /// description. Where no files are described, the format checks them: in folders of images every
  /// image is decoded, damaged ones are listed, and one line says how many are valid. Where all is
  /// well, every split is opened as for training, and what is refused there is a problem here.
  /// Throws Error: usage for a dataset without files, failure if no file of it is found.
  std::vector<FileVerification> verify() const;

 private:
  struct Request;

  /// `asked`: the name whose bases are followed, `depth` of them so far.
  DatasetSource(std::string_view asked, std::string_view name, int depth);
  Request request(std::string_view split) const;
  /// Opens what is requested, or its metadata alone, with `applies_exif` in place of
  /// spec().exif_orientation.
  std::shared_ptr<const Dataset> make(const Request& request, MosaicContent content,
                                      std::optional<bool> applies_exif) const;
  std::shared_ptr<const Dataset> derive(std::shared_ptr<const Dataset> base, const Request& request,
                                        MosaicContent content,
                                        std::optional<bool> applies_exif) const;
  /// Returns a source that this one is made of, after checking that its photos can be turned.
  const DatasetSource& checked_source(const DatasetSource& part,
                                      std::optional<bool> applies_exif) const;

  std::string name_;  ///< As it was asked for.
  DatasetSpec spec_;
  std::shared_ptr<const DatasetSource> base_, backdrops_;  ///< Null where it has none.
};

/// Opens a split of a described dataset: DatasetSource(name).open(split).
inline std::shared_ptr<const Dataset> open_dataset(std::string_view name, std::string_view split) {
  return DatasetSource(name).open(split);
}
/// Returns DatasetSource(name).splits().
inline std::vector<std::string> dataset_splits(std::string_view name) {
  return DatasetSource(name).splits();
}

/// Opens datasets for planning: the dataset where its files are found, else its metadata alone,
/// with one warning per name.
class PlannedDatasets {
 public:
  /// Returns the dataset or its metadata alone.
  std::shared_ptr<const Dataset> operator()(std::string_view name, std::string_view split);

 private:
  std::set<std::string, std::less<>> absent_;
};

/// Throws Error (usage) that names both where `out`, a new file or folder, lies among the images
/// that a dataset is read from: it would be a class or an image the next time.
void check_outside_images(const fs::path& out, const std::string& data);

/// Throws Error (usage) where `out` lies among the images that a checkpoint was trained on, by its
/// configuration.
void check_outside_trained_images(const fs::path& out, const Json& config);

}  // namespace moesaic
