import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
HOME = "https://github.com/edcache/edcache"

# The version stands in the package alone. Importing it would take what is not installed yet.
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "edcache" / "__init__.py").read_text(), re.MULTILINE)

# libFuzzer for Python; it has wheels for these alone.
ATHERIS = (
    'atheris>=3.0; sys_platform == "linux" and platform_machine == "x86_64" '
    'and python_version >= "3.11" and python_version < "3.14"'
)

# All that `scripts/test` takes: a test of an optional library is skipped. `scripts/test --full` takes "full".
TEST = ["pytest>=8", "pytest-xdist>=3.5", "hypothesis>=6.100"]

DOCS = ["sphinx>=7.2", "furo>=2024.1", "myst-parser>=3", "sphinx-click>=6"]

# What makes and checks the files for an index; setuptools as in pyproject.toml.
RELEASE = ["build>=1.2", "twine>=6.1", "setuptools>=77"]

setup(
    name="edcache",
    version=VERSION[1],
    description="A crash-safe, filterable, single-file cache for PyTorch datasets",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The edcache developers",
    url=HOME,
    project_urls={
        "Source": HOME,
        "Documentation": "https://edcache.readthedocs.io",
        "Changelog": f"{HOME}/blob/main/CHANGELOG.md",
        "Issues": f"{HOME}/issues",
    },
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    keywords=[
        *("pytorch", "dataset", "cache", "dataloader", "machine learning", "deep learning", "archive", "zip"),
        *("labels", "images", "data loading", "preprocessing", "reproducibility"),
    ],
    packages=find_packages(include=["edcache", "edcache.*"]),
    package_data={"": ["py.typed", "*.pyi"], "edcache.display": ["page.*"]},
    python_requires=">=3.10",
    install_requires=[
        "torch>=2.2",
        "numpy>=1.24",
        # No marker can say it: with numpy 1 below 26, which asks for numpy 2 when it is imported.
        "pyarrow>=14.0.1",
        "zstandard>=0.22",
        "tqdm>=4.60",
        "click>=8.1",
        "lazy-loader>=0.6",
        # zlib's own crc32 is the fallback where isal has no wheel.
        'isal>=1.6; platform_machine in "x86_64 AMD64 aarch64 arm64"',
    ],
    extras_require={
        # Pillow decodes JPEG too, where simplejpeg has no wheel.
        "images": ["Pillow>=9", "simplejpeg>=1.7"],
        "dask": ["distributed>=2023.5"],
        "hf": ["huggingface_hub>=0.23", "fsspec>=2024.2", "aiohttp>=3.9"],
        "ray": ["ray>=2.9"],
        "remote": ["fsspec>=2024.2", "aiohttp>=3.9"],
        "s3": ["s3fs>=2024.2", "aiohttp>=3.9"],
        "gs": ["gcsfs>=2024.2", "aiohttp>=3.9"],
        "redis": ["redis[hiredis]>=5"],
        "xla": ["torch_xla>=2.2"],
        "fuzz": [ATHERIS, "hypothesis>=6.100"],
        # fsspec and aiohttp: edcache reads http by them.
        "bench": [
            *("matplotlib>=3.7", "scikit-learn>=1.3", "s3fs>=2024.2", "aiohttp>=3.9"),
            *("Pillow>=9", "simplejpeg>=1.7", "datasets>=2.14"),
        ],
        "quickstart": ["scikit-learn>=1.3", "Pillow>=9"],
        "docs": DOCS,
        "release": RELEASE,
        "test": TEST,
        "full": [
            *TEST,
            "Pillow>=9",
            "simplejpeg>=1.7",
            "pandas>=1.5",
            *DOCS,
            *RELEASE,
            "markdown-it-py>=3",
            "coverage[toml]>=7.10",
            "ruff>=0.6",
            "basedpyright",
            "mypy>=1.11",
            "duckdb>=1.0",
            "polars>=0.20",
            "scikit-learn>=1.3",
            "distributed>=2023.5",
            "loky>=3.4",
            "pytorch-lightning>=2.2",
            "ray>=2.9",
            "s3fs>=2024.2",
            "gcsfs>=2024.2",
            "aiohttp>=3.9",
            "moto[server]>=5",
            "gcp-storage-emulator>=2022.6",
            "torchdata>=0.8",
            "datasets>=2.14",
            "webdataset>=0.2.86",
            "tensordict>=0.5",
            "monai>=1.4",
            "transformers>=4.40",
            "diffusers>=0.30",
            "torch-geometric>=2.5",
            "accelerate>=1",
            "matplotlib>=3.7",
            "ml_dtypes>=0.4",
            "nbclient>=0.10",
            "ipykernel>=6.29",
            "ipywidgets>=8",
            "selenium>=4.20",
            "redis[hiredis]>=5",
            ATHERIS,
        ],
    },
    entry_points={"console_scripts": ["edcache = edcache.cli:main"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Framework :: Jupyter",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Processing",
        "Topic :: System :: Archiving",
        "Typing :: Typed",
    ],
)
